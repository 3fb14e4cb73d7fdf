"""A copy of a state, which training can't change any more."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from core.checkpoint.copies.device_copies import DeviceCopies
from core.checkpoint.state.plain_state import copied, once_each
from core.checkpoint.state.shards import chunks_to_write, is_sharded, shape_of
from core.checkpoint.state.tree import AT_ONCE, leaf_name
from core.contract.sharded_leaf import Chunk, ShardedLeaf

if TYPE_CHECKING:
    from collections.abc import Iterable

    from core.checkpoint.state.checks import KeyPath

LEAST_BYTES = 1 << 20
"""Tensors below this size are torch's: it takes one thread for them."""
_PIECE_BYTES = 4 << 20
_BYTES_A_THREAD = 32 << 20
"""Bytes for which it pays to begin a thread."""
_MAX_THREADS = 8
"""More don't copy faster: memory is busy then."""


class StagingMemory:
    """Copies states to the CPU, into memory that is used again for the next one.

    Fresh memory costs more than the copying, since the system clears each page of it. CUDA devices
    copy by themselves, which `finish` waits for.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}
        self._on_devices: DeviceCopies | None = None

    def copy(
        self,
        state: dict[str, Any],
        *,
        rank: int,
        sharded: bool,
        stepped: Iterable[torch.Tensor] = (),
    ) -> dict[str, Any]:
        """A copy of all tensors, arrays and containers in `state`. The one before it is not to be
        used any more.

        Args:
            state: as it is handed to a CheckpointIO.
            rank: of this process. Of what it doesn't write, nothing is copied.
            sharded: whether the CheckpointIO is of that layout.
            stepped: tensors of it that nothing but an optimizer's step changes.

        Raises:
            CheckpointError: something in it can't be saved; its path is named.
        """
        copies = _Copies(self._buffers)
        copy = once_each(copies.begin)

        def take(leaf: Any, key_path: KeyPath, target: object) -> Any:
            name = leaf_name(key_path)
            if is_sharded(leaf):
                chunks = (
                    Chunk(part.offsets, part.sizes, copy(part.tensor, f"{name}{part.offsets}"))
                    for part in chunks_to_write(name, leaf, rank)
                )
                return ShardedLeaf(shape_of(leaf), leaf.dtype, tuple(chunks))
            if target is AT_ONCE or leaf.is_quantized:
                return leaf.to("cpu", copy=True)
            if sharded and rank:  # plain tensors are those of rank 0
                return ShardedLeaf(tuple(leaf.shape), leaf.dtype)
            return copy(leaf, name)

        made = copied(state, take)
        if copies.from_devices:
            self._on_devices = self._on_devices or DeviceCopies()
            self._on_devices.begin(copies.from_devices, stepped)
        copy_all(copies.in_memory)
        # Buffers that this state didn't need are freed.
        self._buffers = copies.buffers
        return made

    def finish(self) -> None:
        """Wait until all of the copy is there. In any thread.

        Raises:
            CheckpointError: it is no copy of one moment.
        """
        if self._on_devices:
            self._on_devices.finish()

    def close(self) -> None:
        """Release optimizers and memory. The last copy is not to be used any more."""
        if self._on_devices:
            self._on_devices.close()
        self._buffers, self._on_devices = {}, None


class _Copies:
    """Copies of one state, each with memory of its own, most of which are still to be made.

    Attributes:
        buffers: the memory of copies that aren't made by devices, by name.
        from_devices: copies that devices make: targets and sources.
        in_memory: copies from memory to memory.
    """

    def __init__(self, kept: dict[str, torch.Tensor]) -> None:
        self._kept = kept
        self.buffers: dict[str, torch.Tensor] = {}
        self.from_devices: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.in_memory: list[tuple[torch.Tensor, torch.Tensor]] = []

    def begin(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """The copy of a tensor."""
        if tensor.device.type == "cuda":
            held = torch.empty(0, dtype=tensor.dtype)
            self.from_devices.append((held, tensor))
            return held
        # Popped, so that no memory is given out twice.
        buffer = self._kept.pop(name, None)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype)
        self.buffers[name] = buffer
        if not can_copy(tensor):
            return buffer.copy_(tensor)
        self.in_memory.append((buffer, tensor))
        return buffer


def can_copy(tensor: torch.Tensor) -> bool:
    """True if the elements of a tensor are large memory of the processor's own, in order and as
    they are.
    """
    is_plain = (
        tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
    )
    return is_plain and tensor.nbytes >= LEAST_BYTES


def copy_all(copies: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy memory to memory, by as many threads as torch may use.

    torch's `copy_` deals out equal parts, and spins until the last of them is done: where other
    programs want the same cores, that takes twice the processor's time, and longer than one thread
    would. Here a thread takes the next piece when it is done with one, so that a core that isn't
    free does less.

    Args:
        copies: each a target and what it gets, of one type and shape, and both as `can_copy` wants
            them.
    """
    pieces = [
        (
            target.data_ptr() + start,
            source.data_ptr() + start,
            min(_PIECE_BYTES, source.nbytes - start),
        )
        for target, source in copies
        for start in range(0, source.nbytes, _PIECE_BYTES)
    ]
    if pieces:
        most = 1 + sum(source.nbytes for _, source in copies) // _BYTES_A_THREAD
        num_threads = min(torch.get_num_threads(), _MAX_THREADS, most)
        # Its end waits for all pieces, also after Ctrl-C: no thread may go on with memory that is
        # given back.
        with ThreadPoolExecutor(num_threads) as threads:
            list(threads.map(lambda piece: ctypes.memmove(*piece), pieces))
