"""A copy of a state, which training can't change any more."""

from __future__ import annotations

from typing import Any

import torch

from core.checkpoint.copying import can_copy, copy_all
from core.checkpoint.plain_state import Converter
from core.checkpoint.shards import chunks_to_write, shape_of
from core.checkpoint.tree import is_sharded
from core.contract.sharded_leaf import Chunk, ShardedLeaf


class StagingMemory:
    """Copies states to the CPU, into memory that is used again for the next one.

    Fresh memory costs more than the copying, since the system clears each page of it. What comes from a CUDA device
    goes to pinned memory, to which the device copies by itself.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def copy(self, state: dict[str, Any], *, rank: int, sharded: bool) -> dict[str, Any]:
        """A copy of all tensors, arrays and containers in `state`. The one before it is not to be used any more.

        Args:
            state: as it is handed to a CheckpointIO.
            rank: of this process. Of what it doesn't write, nothing is copied.
            sharded: whether the CheckpointIO is of that layout.

        Raises:
            CheckpointError: something in it can't be saved; its path is named.
        """
        walk = _Snapshot(self._buffers, rank, sharded)
        copied = walk.convert_state(state)
        copy_all(walk.copies)
        for device in walk.devices:
            torch.cuda.current_stream(device).synchronize()
        # Buffers that this state didn't need are freed.
        self._buffers = walk.used
        return copied


class _Snapshot(Converter):
    def __init__(self, buffers: dict[str, torch.Tensor], rank: int, sharded: bool) -> None:
        super().__init__()
        self._buffers = buffers
        self._rank = rank
        self._sharded = sharded
        self.used: dict[str, torch.Tensor] = {}
        self.devices: set[torch.device] = set()  # that are still copying
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # that are still to be made

    def tensor(self, tensor: torch.Tensor, path: str) -> Any:
        if self._sharded and self._rank:  # plain tensors are those of rank 0
            return ShardedLeaf(tuple(tensor.shape), tensor.dtype)
        return super().tensor(tensor, path)

    def dense(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        is_pinned = tensor.device.type == "cuda"
        # Popped, so that no memory is given out twice.
        buffer = self._buffers.pop(path, None)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_pinned)
        self.used[path] = buffer
        if can_copy(tensor):
            self.copies.append((buffer, tensor))
            return buffer
        if is_pinned:
            self.devices.add(tensor.device)
        return buffer.copy_(tensor, non_blocking=is_pinned)

    def sparse(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to("cpu", copy=True)

    def other(self, value: Any, path: str) -> Any:
        if not is_sharded(value):
            return super().other(value, path).copy()
        chunks = (
            # Past this class's own `tensor`: a chunk belongs to this rank, whichever that is.
            Chunk(chunk.offsets, chunk.sizes, super(_Snapshot, self).tensor(chunk.tensor, f"{path}{chunk.offsets}"))
            for chunk in chunks_to_write(path, value, self._rank)
        )
        return ShardedLeaf(shape_of(value), value.dtype, tuple(chunks))
