"""One rank's part of a checkpoint folder: its bytes in one file, and an index of them in a second
one.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import torch

from core.checkpoint.copies.tensor_bytes import ALIGNMENT_BYTES, pieces
from core.checkpoint.format import digest
from core.checkpoint.format.coverage import lie_apart
from core.checkpoint.format.manifest import FileEntry
from core.checkpoint.state.shards import chunks_to_write
from core.checkpoint.state.tree import Encoder, readable
from core.contract.errors import CheckpointError
from core.contract.sharded_leaf import ShardedLeaf

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.checkpoint.folder.folder import Folder
    from core.contract.sharded_leaf import Chunk

_TO_JSON = json.JSONEncoder(separators=(",", ":")).encode


class PartWriter:
    """Writes what one rank has to write of a state. Which part that is, each rank works out by
    itself.

    Attributes:
        tree: the state, as `core.checkpoint.state.tree` writes it.
        num_elements: of all leaves, on all ranks.
        num_written: elements that this rank has written.
    """

    def __init__(self, state: object, rank: int) -> None:
        """Encode the state; nothing is written yet.

        Raises:
            CheckpointError: something in it can't be saved; its path is named.
        """
        encoder = Encoder()
        self.tree = encoder.encode_state(state)
        for name, leaf in encoder.leaves.items():
            if isinstance(leaf, torch.Tensor) and leaf.is_quantized:
                raise CheckpointError(
                    f"{readable(tuple(json.loads(name)))!r} is a quantized tensor. Save its "
                    "int_repr(), scale and zero point instead."
                )
            if isinstance(leaf, ShardedLeaf):
                places = [
                    (tuple(chunk.offsets), tuple(chunk.sizes))
                    for chunk in leaf.chunks
                    if math.prod(chunk.sizes)
                ]
                if not lie_apart(leaf.global_shape, places):
                    raise CheckpointError(
                        f"The chunks of {readable(tuple(json.loads(name)))!r} overlap, or leave "
                        f"its shape {leaf.global_shape}. Save DTensors, or ShardedLeafs whose "
                        "chunks lie side by side."
                    )
        self._leaves: Mapping[str, Any] = encoder.leaves
        self.num_elements = encoder.num_elements
        self._rank = rank
        self._index: dict[str, list[Any]] = {}
        self.num_written = 0

    def write(self, folder: Folder, token: str) -> dict[str, FileEntry]:
        """Write the files of this rank.

        Returns:
            The files by name; the file with the bytes is left out if there are none.
        """
        stem = f"{token}-{self._rank:05}"
        parts = [
            (name, chunk)
            for name, leaf in self._leaves.items()
            for chunk in chunks_to_write(name, leaf, self._rank)
            if chunk.tensor.numel()
        ]
        # Those whose sizes are multiples of a block's first, and so on down: without a gap between
        # them, each begins at a multiple of what its size is one of. Reading a part of them, or all
        # but the small ones, needs fewer blocks.
        parts.sort(key=_evenness, reverse=True)
        self.num_written = sum([chunk.tensor.numel() for _, chunk in parts])
        if not parts and self._rank:  # rank 0's index also has what isn't in tensors
            return {}
        files = {}
        blocks: list[str] = []
        if parts:
            with folder.create(token, f"{stem}.data") as file:
                writer = digest.BlockWriter(file)
                self._write_chunks(writer, parts)
            files[f"{stem}.data"] = FileEntry(writer.position, writer.finish())
            blocks = writer.blocks
        content = {"leaves": self._index, "blocks": blocks}
        if self._rank == 0:
            content = {"tree": self.tree, **content}
        with folder.create(token, f"{stem}.json") as file:
            writer = digest.BlockWriter(file)
            writer.write(_TO_JSON(content).encode())
        files[f"{stem}.json"] = FileEntry(writer.position, writer.finish())
        return files

    def _write_chunks(self, writer: digest.BlockWriter, parts: list[tuple[str, Chunk]]) -> None:
        # Tied weights are leaves on the same memory: their bytes are written once, and loading ties
        # them again.
        owned = [(_memory_of(chunk.tensor), name, chunk) for name, chunk in parts]
        tensors = {memory: chunk.tensor for memory, _, chunk in owned}
        positions: dict[object, int] = {}
        for memory, piece in pieces(tensors):
            if memory not in positions:
                writer.align(ALIGNMENT_BYTES)
                positions[memory] = writer.position
            writer.write(piece)
        for memory, name, chunk in owned:
            place = [list(chunk.offsets), list(chunk.sizes), positions[memory]]
            self._index.setdefault(name, []).append(place)


def _evenness(part: tuple[str, Chunk]) -> int:
    """The largest power of two that a chunk's number of bytes is a multiple of, up to a block's
    bytes.
    """
    num_bytes = part[1].tensor.nbytes
    return min(num_bytes & -num_bytes, digest.BLOCK_BYTES)


def _memory_of(tensor: torch.Tensor) -> object:
    """A key that tensors have in common whose elements are the same memory in the same order."""
    if tensor.is_contiguous():
        # Not the dtype: a view of the same bytes in another one is the same bytes.
        return tensor.data_ptr(), tensor.nbytes
    return id(tensor)
