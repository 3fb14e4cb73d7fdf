"""One rank's part of a checkpoint folder: its bytes in one file, and an index of them in a second one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from core.checkpoint import digest
from core.checkpoint.manifest import FileEntry
from core.checkpoint.memory import pieces
from core.checkpoint.shards import chunks_to_write, shape_of
from core.checkpoint.tree import Encoder
from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from core.checkpoint.folder import Folder
    from core.contract.sharded_leaf import Chunk

_ALIGNMENT_BYTES = 64
"""Of each tensor in the file, so that it can be used where it is mapped."""


class PartWriter:
    """Writes what one rank has to write of a state. Which part that is, each rank works out by itself."""

    def __init__(self, state: Any, rank: int) -> None:
        """Look through the state; nothing is written yet.

        Raises:
            CheckpointError: something in it can't be saved; its path is named.
        """
        encoder = Encoder()
        try:
            self.tree = encoder.encode(state, (), "state")
        except RecursionError:
            raise CheckpointError(
                "The state is nested too deeply to be saved, or holds itself. Save plain, finite data."
            ) from None
        self._leaves: Mapping[str, Any] = encoder.leaves
        self._rank = rank
        self._index: dict[str, list[Any]] = {}
        self._positions: dict[tuple[int, int], int] = {}
        self.num_written = 0

    @property
    def num_elements(self) -> int:
        """Elements of all leaves, on all ranks."""
        return sum(_product(shape_of(leaf)) for leaf in self._leaves.values())

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
        if not parts and self._rank:
            return {}
        entries, blocks = {}, []
        if parts:
            with folder.create(token, f"{stem}.data") as file:
                writer = digest.BlockWriter(file)
                for name, chunk in parts:
                    self._write_chunk(writer, name, chunk)
                writer.finish()
            blocks = writer.blocks
            entries[f"{stem}.data"] = FileEntry(writer.position, digest.of_blocks(blocks))
        entries[f"{stem}.json"] = self._write_index(folder, token, stem, blocks)
        return entries

    def _write_chunk(self, writer: digest.BlockWriter, name: str, chunk: Chunk) -> None:
        memory = _memory_of(chunk.tensor)
        if memory not in self._positions:
            writer.align(_ALIGNMENT_BYTES)
            if memory is not None:
                self._positions[memory] = writer.position
            position = writer.position
            for piece in pieces(chunk.tensor):
                writer.write(piece)
        else:
            position = self._positions[memory]
        self._index.setdefault(name, []).append([list(chunk.offsets), list(chunk.sizes), position])
        self.num_written += chunk.tensor.numel()

    def _write_index(self, folder: Folder, token: str, stem: str, blocks: list[str]) -> FileEntry:
        content = {"leaves": self._index, "blocks": blocks}
        if self._rank == 0:
            content = {"tree": self.tree, **content}
        with folder.create(token, f"{stem}.json") as file:
            writer = digest.BlockWriter(file)
            writer.write(json.dumps(content, separators=(",", ":")).encode())
            writer.finish()
        return FileEntry(writer.position, digest.of_blocks(writer.blocks))


def _memory_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Where a tensor's elements are, if they are there in order: tensors that share memory are written once."""
    return (tensor.data_ptr(), tensor.nbytes) if tensor.is_contiguous() else None


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
