"""By hand: checkpoints of four schedules and of combined axes, carried into other strategies and back.

    python plugins/parallel/tests/all_layouts.py [interpreter that has DeepSpeed]

Each source trains three steps and saves; each target loads that and saves; the source loads that and saves again. All
three checkpoints hold the same bits, weights and optimizer. An interpreter with DeepSpeed adds `deepspeed_stage_2`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from combined import carry, one_device, ranks, read

from core.checkpoint import DistributedCheckpointIO, TorchCheckpointIO
from core_testing.ranks import end_kept_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOURCES: tuple[tuple[dict[str, Any], int], ...] = (
    *(({"pipeline": 2, "schedule": name}, 2) for name in ("GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble")),
    ({"pipeline": 2, "tensor": 2}, 4),
    ({"pipeline": 2, "shard": 2, "schedule": "1F1B"}, 4),
    ({"pipeline": 2, "context": 2}, 4),
    ({"pipeline": 2, "shard": 2, "tensor": 2}, 8),
    ({"shard": 2, "context": 2}, 4),
)
_TARGETS: tuple[tuple[Any, int], ...] = ((None, 1), ({"alias": "ddp"}, 2), ({"alias": "fsdp"}, 2))


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


def carried_by_deepspeed(interpreter: str, source: Path, target: Path) -> None:
    """Load and save under `deepspeed_stage_2`, in another interpreter."""
    subprocess.run([interpreter, __file__, "--carry", str(source), str(target)], check=True, timeout=300)


def carry_under_deepspeed(source: str, target: str) -> None:
    """The same, in that interpreter."""
    import core_deepspeed.conformance  # noqa: F401  # imports DeepSpeed once, and not in each of the ranks

    ranks(2).run(carry, {"alias": "deepspeed_stage_2"}, TorchCheckpointIO, source, target)
    end_kept_ranks()


def main(interpreter: str | None) -> int:
    """The number of ways that changed a bit."""
    failed = 0
    for (mesh, size), form in (
        (source, form) for source in _SOURCES for form in (DistributedCheckpointIO, TorchCheckpointIO)
    ):
        with tempfile.TemporaryDirectory() as folder:
            first = Path(folder) / "first"
            ranks(size).run(carry, mesh, form, None, first)
            saved = one_device("cpu").run(read, first)[0]
            targets = (*_TARGETS, *(((interpreter, 0),) if interpreter else ()))
            for index, (target, number) in enumerate(targets):
                away, back = (Path(folder) / f"{name}{index}" for name in ("away", "back"))
                if number == 0:
                    carried_by_deepspeed(str(target), first, away)
                else:
                    ranks(number).run(carry, target, form, first, away)
                ranks(size).run(carry, mesh, form, away, back)
                states = [one_device("cpu").run(read, path)[0] for path in (away, back)]
                found = [place for state in states for place in differing(saved, state)]
                failed += bool(found)
                name = "deepspeed_stage_2" if number == 0 else target
                print(f"{mesh} {form.__name__} into {name} and back: {found[:4] or 'equal bits'}", flush=True)
    end_kept_ranks()
    return failed


if __name__ == "__main__":
    if sys.argv[1:2] == ["--carry"]:
        carry_under_deepspeed(*sys.argv[2:4])
    else:
        sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
