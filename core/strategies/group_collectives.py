"""Objects between the ranks of a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from core.strategies import gather_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from core.contract import Collectives

_PIECE_BYTES = 1 << 28
"""The most bytes of one message: the sizes that gloo's transports take have had limits."""


def gather_objects(obj: object, dst: int, group: dist.ProcessGroup | None = None) -> list[object] | None:
    """All ranks of a group. On rank `dst` everyone's `obj` in the order of ranks; None elsewhere."""
    whole = group if group is not None else dist.group.WORLD
    if whole is not None and dst == 0 and gather_tree.serves(whole):
        return gather_tree.gather_in_group(obj, whole)
    gathered: list[object] | None = [None] * dist.get_world_size(group) if dist.get_rank(group) == dst else None
    dist.gather_object(obj, gathered, dst=dst, group=group)
    return gathered


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

    def exchange(self, sends: Sequence[tuple[int, Any]], receives: Sequence[tuple[int, Any]]) -> None:
        """Send bytes to ranks, and receive some from ranks, all at once; see `DirectCollectives.exchange`."""
        # Receives first: what comes then has a place.
        works = [*self._messages(dist.irecv, receives), *self._messages(dist.isend, sends)]
        for work in works:
            work.wait()

    def _messages(self, send: Callable[..., Any], buffers: Sequence[tuple[int, Any]]) -> Iterator[Any]:
        for rank, buffer in buffers:
            if len(buffer):
                for piece in torch.frombuffer(buffer, dtype=torch.uint8).split(_PIECE_BYTES):
                    yield send(piece, rank, group=self._group)

    def agree(self, vote: bool) -> bool:
        """All ranks. True if all say so."""
        votes = torch.tensor(int(vote))
        dist.all_reduce(votes, dist.ReduceOp.MIN, self._group)
        return bool(votes.item())

    def in_background(self) -> Collectives:
        """Return these: they are for a background thread already."""
        return self
