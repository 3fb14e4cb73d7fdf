"""Collectives of this process, from torch's flight recorder."""

from __future__ import annotations

import pickle
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Collective:
    """A collective that this rank has issued.

    Attributes:
        name: with its shapes, such as `"gloo:all_reduce [[10]]"`, and formats other than float32;
            empty if unknown.
        is_usual: True if this rank has issued this one after the same predecessor before.
        num_calls: its sequence number in its group, which is the same on ranks that make the same
            calls.
    """

    name: str = ""
    is_usual: bool = False
    num_calls: int = 0


def newest() -> Collective:
    """The collective that was issued last, if it is still under way; else an empty one."""
    entries = _entries()
    if not entries or entries[-1].get("retired", True):
        return Collective()
    steps, entry = list(pairwise(map(_key, entries))), entries[-1]
    formats = [each for each in entry.get("input_dtypes", ()) if each != "Float"]
    shown = " ".join([entry["profiling_name"], str(entry.get("input_sizes", "")), *formats])
    return Collective(
        shown, bool(steps) and steps[-1] in steps[:-1], int(entry.get("collective_seq_id", 0))
    )


def num_begun() -> int:
    """The number of collectives that this rank has issued in the default group."""
    import torch.distributed as dist

    with suppress(Exception):  # no backend has to count, and the group may be left meanwhile
        group: Any = dist.group.WORLD  # torch's types lack the number
        return int(group._get_sequence_number_for_group())
    return 0


def run_on_device() -> bool:
    """True if collectives run beside the thread that has begun them, which then waits wherever it
    needs a value.
    """
    import torch.distributed as dist

    with suppress(Exception):  # the group may be left meanwhile
        return "gloo" not in dist.get_backend()
    return False


def _entries() -> list[dict[str, Any]]:
    import torch._C._distributed_c10d as c10d

    # The recorder of NCCL is one of its own, in builds that have it.
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        dump = getattr(c10d, name, None)
        if dump is not None:
            with _without_imports():
                # torch's own, of this process
                entries: list[dict[str, Any]] = pickle.loads(dump()).get("entries", [])
            if entries:
                return entries
    return []


@contextmanager
def _without_imports() -> Iterator[None]:
    """Keep torch from importing its compiler, which it asks for the frames of compiled code.

    `torch._inductor` is imported by the first who asks for that attribute. In this thread, beside a
    main thread that is importing it too, each of the two would find half of a module, and the
    user's program would end by an ImportError.
    """
    import torch

    lazy: set[str] = vars(torch).get("_lazy_modules", set())
    kept = {"_inductor"} & lazy
    lazy -= kept
    try:
        yield
    finally:
        lazy |= kept


def _key(entry: dict[str, Any]) -> tuple[str, ...]:
    """The collective and the place that it was called from."""
    places = [f"{frame['filename']}:{frame['line']}" for frame in entry.get("frames", [])]
    return entry["profiling_name"], str(entry.get("input_sizes")), *places
