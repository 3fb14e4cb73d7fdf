"""By hand: every cell of pipeline, schedule, data and tensor that needs at most 8 ranks, and
further axes with them.

    python benchmarks/parallel_cells.py [part of a cell's text ...]

prints the largest difference of a weight from that of one device after 20 steps (windows of 2
batches of 8, the last of an epoch of 6, clipped). A cell that differs by more than 1e-12 ends it
with an error.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).parents[1] / "plugins/parallel/tests"))
from language import ALONE, Mixture, Net, Stacked, Step, listed, on, train

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble")
_OPTIONS = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3, "max_steps": 20}


def cells() -> Iterator[dict[str, Any]]:
    """Options of the strategy."""
    for pipeline, schedule, data, tensor in product((2, 4), _SCHEDULES, (1, 2), (1, 2)):
        if pipeline * data * tensor <= 8:
            yield {"pipeline": pipeline, "schedule": schedule, "data": data, "tensor": tensor}
    for pipeline, schedule, (axis, size) in product(
        (2, 4), (None, *_SCHEDULES), (("context", 2), ("context", 4), ("shard", 2))
    ):
        if pipeline * size <= 8:
            yield {"pipeline": pipeline, "schedule": schedule, "data": 1, axis: size}
    yield {"pipeline": 2, "schedule": None, "data": 1, "shard": 2, "tensor": 2}
    yield {"pipeline": 2, "schedule": "1F1B", "data": 1, "shard": 2, "tensor": 2}
    yield {"pipeline": 2, "schedule": "1F1B", "data": 1, "shard": 2, "context": 2}
    yield {"pipeline": 2, "schedule": "1F1B", "data": 1, "context": 2, "tensor": 2}
    yield {"data": 1, "shard": 2, "context": 2, "tensor": 2}
    yield {"data": 2, "shard": 2, "context": 2}
    yield from _of_experts()


def _of_experts() -> Iterator[dict[str, Any]]:
    for expert, (axis, size) in product((2, 4), (("shard", 2), ("tensor", 2), ("context", 2))):
        yield {"expert": expert, "data": expert if axis == "tensor" else 2, axis: size}
    for expert, schedule in product((2, 4), (None, *_SCHEDULES)):
        yield {"expert": expert, "data": expert, "pipeline": 2, "schedule": schedule}
    yield {"expert": 2, "data": 4, "pipeline": 2, "schedule": "1F1B"}
    yield {"expert": 2, "data": 2, "pipeline": 4, "schedule": "1F1B"}
    yield {"expert": 4, "data": 4, "shard": 2}
    for axis in ("shard", "context"):
        for schedule in (None, "1F1B"):
            yield {"expert": 2, "data": 1, axis: 2, "pipeline": 2, "schedule": schedule}
    yield {"expert": 2, "data": 2, "shard": 2, "pipeline": 2, "schedule": "1F1B"}
    yield {"expert": 2, "data": 2, "tensor": 2, "pipeline": 2, "schedule": "1F1B"}
    yield {"expert": 2, "data": 1, "shard": 2, "context": 2, "tensor": 2}


def _make() -> Step:
    """Eight parts, for as many stages."""
    return Step(partial(Net, 6))


class _MixedNet(Net):
    """Six parts; the second block and the last have experts, the first part and the last have
    none.
    """

    def __init__(self) -> None:
        super().__init__(4)
        self.blocks[3] = Mixture(listed())
        self.blocks[1] = Mixture(Stacked())


def _make_mixed() -> Step:
    return Step(_MixedNet)


def _difference(mesh: dict[str, Any], make: Any) -> float:
    """The largest difference of a weight from that of one device, or of a value, if all ranks have
    all data.
    """
    own = partial(train, make=make, **_OPTIONS)
    backend = on(**mesh)
    weights, values = backend.run(own)[0]
    expected, logged = ALONE.run(own)[0]
    found = [float((weights[name] - value).abs().max()) for name, value in expected.items()]
    if backend.data_parallel_size == 1:
        found += [abs(values[name] - value) for name, value in logged.items()]
    return max(found)


def main(wanted: list[str]) -> int:
    """Run the cells whose text holds one of these; all without any. The number that differ."""
    failed = 0
    for mesh in cells():
        shown = " ".join(f"{name}={value}" for name, value in mesh.items())
        if wanted and not any(one in shown for one in wanted):
            continue
        found = _difference(mesh, _make_mixed if "expert" in mesh else _make)
        failed += not found < 1e-12
        print(f"{shown}: {found:.1e}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
