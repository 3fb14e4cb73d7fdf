"""Objects, and tensors with gradients, between the ranks of a process group."""

from __future__ import annotations

import math
import pickle
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from core.contract import Collectives

    Buffers: TypeAlias = Iterable[tuple[int, Any]]

_PIECE_BYTES = 1 << 28
"""The most bytes of one message: the sizes that gloo's transports take have had limits."""
FAN = 64
"""The most ranks that tell one directly; more where there are more than its square."""
_GATHERS_INTO_ONE = ("gloo", "nccl", "xccl")
"""Backends that gather without a copy of each rank's part."""
# torch 2.13 has another name for it, and warns of the old one.
_gather_into_one = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


def gather_objects(
    obj: object, dst: int, group: dist.ProcessGroup | None = None
) -> list[object] | None:
    """All ranks of a group. On rank `dst` everyone's `obj` in the order of ranks; None
    elsewhere.
    """
    whole = group or dist.group.WORLD
    if whole is not None and dst == 0:
        # NCCL's groups send from devices only: to send between two ranks, they would connect these
        # two first.
        size, backends = dist.get_world_size(whole), dist.get_backend_config(whole)
        if FAN < size == dist.get_world_size() and "cpu:" in backends:
            return _gather_within(obj, whole)
    gathered: list[object] | None = None
    if dist.get_rank(group) == dst:
        gathered = [None] * dist.get_world_size(group)
    dist.gather_object(obj, gathered, dst=dst, group=group)
    return gathered


def _exchange(
    group: dist.ProcessGroup,
    sends: Buffers = (),
    receives: Buffers = (),
) -> None:
    # Receives first: what comes then has a place.
    works = [*_messages(dist.irecv, receives, group), *_messages(dist.isend, sends, group)]
    for work in works:
        work.wait()


def _messages(
    send: Callable[..., Any], buffers: Buffers, group: dist.ProcessGroup
) -> Iterator[Any]:
    for rank, buffer in buffers:
        if len(buffer):
            for piece in torch.frombuffer(buffer, dtype=torch.uint8).split(_PIECE_BYTES):
                yield send(piece, rank, group=group)


class GroupCollectives:
    """The communication that storage needs, over one group of CPU processes."""

    def __init__(self, group: dist.ProcessGroup, writer: Mapping[str, object]) -> None:
        """Wrap a group that has no other user.

        Args:
            group: of all ranks, with a backend for the CPU.
            writer: the saving run, for a reader of the checkpoint.
        """
        self._group = group
        self.writer = writer
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def barrier(self) -> None:
        """Wait until all are here."""
        dist.barrier(self._group)

    def broadcast_object(self, obj: object, src: int = 0) -> Any:
        """`obj` of rank `src`, on all ranks."""
        box = [obj]
        dist.broadcast_object_list(box, src=src, group=self._group)
        return box[0]

    def gather_objects(self, obj: object, dst: int = 0) -> list[Any] | None:
        """On rank `dst` everyone's `obj` in the order of ranks; None elsewhere."""
        return gather_objects(obj, dst, self._group)

    def exchange(self, sends: Buffers, receives: Buffers) -> None:
        """Send bytes to ranks, and receive some from ranks, all at once; see
        `DirectCollectives.exchange`.
        """
        _exchange(self._group, sends, receives)

    def agree(self, vote: bool) -> bool:
        """All ranks. True if all say so."""
        votes = torch.tensor(int(vote))
        dist.all_reduce(votes, dist.ReduceOp.MIN, self._group)
        return bool(votes.item())

    def in_background(self) -> Collectives:
        """Return these: they are for a background thread already."""
        return self


def gather_in_branches(
    obj: object,
    rank: int,
    size: int,
    gather_from: Callable[[Any, Sequence[int]], list[Any] | None],
    fan: int = FAN,
) -> list[object] | None:
    """All ranks. On rank 0 everyone's `obj` in the order of ranks; None elsewhere.

    The ranks of a branch tell its first one, and those that are first tell rank 0.

    Args:
        obj: of this rank.
        rank: its number.
        size: number of ranks.
        gather_from: called with an object and ranks, of which this is one; gives the first of them
            a list of theirs.
        fan: the most ranks of a branch, where there are no more than its square.
    """
    length = max(fan, math.isqrt(size - 1) + 1)
    branch = range(rank - rank % length, min(rank - rank % length + length, size))
    gathered = gather_from(obj, branch)
    if gathered is None:
        return None
    bundles = gather_from(gathered, range(0, size, length))
    if bundles is None:
        return None
    return [each for bundle in bundles for each in bundle]


def _gather_within(obj: object, group: dist.ProcessGroup) -> list[object] | None:
    """All ranks of a group that can send from the processor, whose numbers are those of all
    ranks.
    """

    def gather_from(obj: object, ranks: Sequence[int]) -> list[object] | None:
        first, others = ranks[0], ranks[1:]
        if dist.get_rank() != first:
            content = bytearray(pickle.dumps(obj))
            _exchange(group, [(first, bytearray(len(content).to_bytes(8)))])
            _exchange(group, [(first, content)])
            return None
        sizes = {rank: bytearray(8) for rank in others}
        _exchange(group, receives=sizes.items())
        contents = {rank: bytearray(int.from_bytes(size)) for rank, size in sizes.items()}
        _exchange(group, receives=contents.items())
        return [obj, *map(pickle.loads, contents.values())]

    return gather_in_branches(
        obj, dist.get_rank(group), dist.get_world_size(group), gather_from, FAN
    )


class GatherWithGradients(torch.autograd.Function):
    """Stacks a tensor of shape (...) from all ranks to (world_size, ...); backward sums what all
    ranks want of it.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
        """All ranks, with the same shape."""
        ctx.group = group
        size = dist.get_world_size(group)
        if dist.get_backend(group) not in _GATHERS_INTO_ONE:
            parts = [torch.empty_like(tensor) for _ in range(size)]
            dist.all_gather(parts, tensor, group=group)
            return torch.stack(parts)
        stacked = tensor.new_empty((size, *tensor.shape))
        _gather_into_one(stacked.view(-1), tensor.reshape(-1), group=group)
        return stacked

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """All ranks."""
        # A copy: autograd hands the same tensor to other branches (`gathered + bias`), and
        # all_reduce works in place.
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=ctx.group)
        return gradient[dist.get_rank(ctx.group)], None
