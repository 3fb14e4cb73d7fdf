"""By hand: every cell of pipeline, schedule, data and tensor that needs at most 8 ranks, and further axes with them.

    python plugins/parallel/tests/all_cells.py [part of a cell's text ...]

prints the largest difference of a weight from that of one device after 20 steps (windows of 2 batches of 8, the last of
an epoch of 6, clipped). A cell that differs by more than 1e-12 ends it with an error.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import combined
import mixed
from axes import Step
from combined import difference

from core_testing.ranks import end_kept_ranks

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
    return Step(partial(combined.Net, 6))


def main(wanted: list[str]) -> int:
    """Run the cells whose text holds one of these; all without any. The number that differ."""
    failed = 0
    for mesh in cells():
        shown = " ".join(f"{name}={value}" for name, value in mesh.items())
        if wanted and not any(one in shown for one in wanted):
            continue
        size = prod(value for name, value in mesh.items() if name not in ("schedule", "expert"))
        found = difference(mesh, size, _OPTIONS, mixed.make if "expert" in mesh else _make)
        failed += not found < 1e-12
        print(f"{shown}: {found:.1e}", flush=True)
    end_kept_ranks()
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
