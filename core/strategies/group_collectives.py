"""Objects between the ranks of a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.contract import Collectives


def gather_objects(obj: Any, dst: int, group: dist.ProcessGroup | None = None) -> list[Any] | None:
    """All ranks of a group. On rank `dst` everyone's `obj` in the order of ranks; None elsewhere."""
    gathered: list[Any] | None = [None] * dist.get_world_size(group) if dist.get_rank(group) == dst else None
    dist.gather_object(obj, gathered, dst=dst, group=group)
    return gathered


class GroupCollectives:
    """The communication that storage needs, over one group of CPU processes."""

    def __init__(self, group: dist.ProcessGroup, writer: Mapping[str, Any]) -> None:
        """Take a group that has no other user.

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

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """`obj` of rank `src`, on all ranks."""
        box = [obj]
        dist.broadcast_object_list(box, src=src, group=self._group)
        return box[0]

    def gather_objects(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """On rank `dst` everyone's `obj` in the order of ranks; None elsewhere."""
        return gather_objects(obj, dst, self._group)

    def in_background(self) -> Collectives:
        """Return these: they are for a background thread already."""
        return self
