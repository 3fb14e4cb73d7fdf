"""Objects of many ranks on their way to rank 0: by branches, so that no rank hears of all others one by one."""

from __future__ import annotations

import math
import pickle
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FAN = 64
"""The most ranks that tell one directly; more where there are more than its square."""


def gather(
    obj: object, rank: int, size: int, gather_from: Callable[[Any, Sequence[int]], list[Any] | None], fan: int = FAN
) -> list[object] | None:
    """All ranks. On rank 0 everyone's `obj` in the order of ranks; None elsewhere.

    The ranks of a branch tell its first one, and those that are first tell rank 0.

    Args:
        obj: of this rank.
        rank: its number.
        size: number of ranks.
        gather_from: called with an object and ranks, of which this is one; gives the first of them a list of theirs.
        fan: the most ranks of a branch, where there are no more than its square.
    """
    length = max(fan, math.isqrt(size - 1) + 1)
    branch = range(rank - rank % length, min(rank - rank % length + length, size))
    gathered = gather_from(obj, branch)
    if gathered is None:
        return None
    bundles = gather_from(gathered, range(0, size, length))
    return None if bundles is None else [each for bundle in bundles for each in bundle]


def serves(group: dist.ProcessGroup) -> bool:
    """True if a group is of all ranks, more than one may hear directly, and sends from the processor.

    NCCL's groups send from devices only: to send between two ranks, they would connect these two first.
    """
    size = dist.get_world_size(group)
    return FAN < size == dist.get_world_size() and "cpu:" in dist.get_backend_config(group)


def gather_in_group(obj: object, group: dist.ProcessGroup) -> list[object] | None:
    """All ranks of a group that can send from the processor, whose numbers are those of all ranks."""

    def gather_from(obj: object, ranks: Sequence[int]) -> list[object] | None:
        first, others = ranks[0], ranks[1:]
        if dist.get_rank() != first:
            content = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
            _pass(dist.isend, [torch.tensor([len(content)])], [first], group)
            _pass(dist.isend, [content], [first], group)
            return None
        sizes = [torch.empty(1, dtype=torch.int64) for _ in others]
        _pass(dist.irecv, sizes, others, group)
        contents = [torch.empty(int(size), dtype=torch.uint8) for size in sizes]
        _pass(dist.irecv, contents, others, group)
        return [obj, *(pickle.loads(content.numpy().tobytes()) for content in contents)]

    return gather(obj, dist.get_rank(group), dist.get_world_size(group), gather_from, FAN)


def _pass(operation: Any, tensors: Sequence[torch.Tensor], peers: Sequence[int], group: dist.ProcessGroup) -> None:
    """Send or receive, all at once."""
    for work in [operation(tensor, peer, group) for tensor, peer in zip(tensors, peers, strict=True)]:
        work.wait()
