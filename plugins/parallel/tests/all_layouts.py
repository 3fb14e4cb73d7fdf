"""By hand: checkpoints of schedules and of combined axes, carried into other strategies and back, and gone on from.

    python plugins/parallel/tests/all_layouts.py [--with PYTHON] [part of a layout's text ...]

Each layout trains three steps and saves; each target loads that and saves; the layout loads that and saves again. All
three checkpoints hold the same bits, weights and optimizer. An interpreter with DeepSpeed adds `deepspeed_stage_2`.
Then a run of each layout that was saved in the middle of an epoch goes on under the next layout, `ddp` and `fsdp`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mixed
import torch
from combined import carry, make, one_device, ranks, read, train

from core import WorkerError
from core.checkpoint import DistributedCheckpointIO, TorchCheckpointIO
from core_testing.ranks import end_kept_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

_FORMS = (DistributedCheckpointIO, TorchCheckpointIO)
_LAYOUTS: tuple[tuple[dict[str, Any], int], ...] = (
    *(({"pipeline": 2, "schedule": name}, 2) for name in ("GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble")),
    ({"pipeline": 2, "tensor": 2}, 4),
    ({"pipeline": 2, "shard": 2, "schedule": "1F1B"}, 4),
    ({"pipeline": 2, "context": 2}, 4),
    ({"shard": 2, "tensor": 2}, 4),
    ({"shard": 2, "context": 2}, 4),
    ({"pipeline": 2, "shard": 2, "tensor": 2}, 8),
    ({"expert": 2}, 2),
    ({"expert": 2, "shard": 2}, 4),
    ({"expert": 2, "tensor": 2}, 4),
    ({"expert": 2, "context": 2}, 4),
)
_TARGETS: tuple[tuple[Any, int], ...] = ((None, 1), ({"alias": "ddp"}, 2), ({"alias": "fsdp"}, 2))


def maker(mesh: dict[str, Any]) -> Any:
    """The model of a layout."""
    return mixed.make if "expert" in mesh else make


def differing(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """The places where two states differ by a bit."""
    if isinstance(one, torch.Tensor):
        if one.dtype != other.dtype or not torch.equal(one, other):
            yield path
    elif isinstance(one, dict):
        if one.keys() != other.keys():
            yield f"{path} (keys)"
        for key in one.keys() & other.keys():
            yield from differing(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list | tuple):
        for index, (item, another) in enumerate(zip(one, other, strict=True)):
            yield from differing(item, another, f"{path}/{index}")
    elif one != other:
        yield path


def carried_by_deepspeed(interpreter: str, source: Path, target: Path, mesh: dict[str, Any]) -> None:
    """Load and save under `deepspeed_stage_2`, in another interpreter."""
    command = [interpreter, __file__, "--carry", str(source), str(target), *mesh]
    subprocess.run(command, check=True, timeout=300)


def carry_under_deepspeed(source: str, target: str, *axes: str) -> None:
    """The same, in that interpreter."""
    import core_deepspeed.conformance  # noqa: F401  # imports DeepSpeed once, and not in each of the ranks

    ranks(2).run(carry, {"alias": "deepspeed_stage_2"}, TorchCheckpointIO, source, target, maker(dict.fromkeys(axes)))
    end_kept_ranks()


def carried(mesh: dict[str, Any], size: int, form: Any, folder: Path, interpreter: str | None) -> int:
    """The number of targets that changed a bit."""
    failed, first = 0, folder / "first"
    ranks(size).run(carry, mesh, form, None, first, maker(mesh))
    saved = one_device("cpu").run(read, first)[0]
    targets = (*_TARGETS, *((("deepspeed_stage_2", 0),) if interpreter else ()))
    for index, (target, number) in enumerate(targets):
        away, back = (folder / f"{name}{index}" for name in ("away", "back"))
        if number == 0:
            carried_by_deepspeed(str(interpreter), first, away, mesh)
        else:
            ranks(number).run(carry, target, form, first, away, maker(mesh))
        ranks(size).run(carry, mesh, form, away, back, maker(mesh))
        states = [one_device("cpu").run(read, path)[0] for path in (away, back)]
        found = [place for state in states for place in differing(saved, state)]
        failed += bool(found)
        print(f"{mesh} {form.__name__} into {target} and back: {found[:4] or 'equal bits'}", flush=True)
    return failed


def gone_on(mesh: dict[str, Any], size: int, targets: list[tuple[Any, int]], path: Path) -> int:
    """The number of targets on which a run that was saved in the middle of an epoch ends with other weights."""
    failed, run = 0, partial(train, make=maker(mesh))
    ranks(size).run(run, mesh, {"max_steps": 6}, (None, path), DistributedCheckpointIO)
    expected, _ = one_device("cpu").run(run, None, {"max_steps": 11})[0]
    for target, number in targets:
        weights, _ = ranks(number).run(run, target, {"max_steps": 11}, (path, None), DistributedCheckpointIO)[0]
        differs = max(float((weights[name] - value).abs().max()) for name, value in expected.items())
        failed += not differs < 1e-12
        print(f"{mesh} goes on under {target}: {differs:.1e}", flush=True)
    return failed


def main(wanted: list[str], interpreter: str | None) -> int:
    """The number of ways that changed a bit, or a run."""
    failed = 0
    for mesh, size in _LAYOUTS:
        if wanted and not any(one in str(mesh) for one in wanted):
            continue
        for form in _FORMS:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    failed += carried(mesh, size, form, Path(folder), interpreter)
                except WorkerError as error:
                    failed += 1
                    print(f"{mesh} {form.__name__}: {error}", flush=True)
        others = [(one, number) for one, number in _LAYOUTS if ("expert" in one) == ("expert" in mesh)]
        following = others[(others.index((mesh, size)) + 1) % len(others)]
        with tempfile.TemporaryDirectory() as folder:
            failed += gone_on(mesh, size, [following, *_TARGETS[1:]], Path(folder) / "step")
    end_kept_ranks()
    return failed


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--carry"]:
        carry_under_deepspeed(*arguments[1:])
    else:
        python = arguments[1] if arguments[:1] == ["--with"] else None
        sys.exit(main(arguments[2:] if python else arguments, python))
