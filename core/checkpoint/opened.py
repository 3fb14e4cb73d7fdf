"""A checkpoint folder that is being read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from core.checkpoint import digest, manifest
from core.checkpoint.memory import box_of, box_span
from core.checkpoint.shards import chunks_to_fill, shape_of
from core.checkpoint.tree import Decoder, Place, is_sharded, leaf_name, readable
from core.contract.errors import CheckpointCorruptedError, CheckpointError
from core.contract.sharded_leaf import Chunk, TensorDescription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from core.checkpoint.folder import Folder
    from core.checkpoint.verified_file import MappedFile, RemoteFile

    File: TypeAlias = MappedFile | RemoteFile


@dataclass(frozen=True, slots=True)
class SavedChunk:
    """A box of a tensor, and where its bytes are."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: File
    position: int


@dataclass(frozen=True, slots=True)
class _Read:
    """Bytes of a file that are to become a box of a tensor."""

    file: File
    start: int
    stop: int
    put: Callable[[memoryview], None]


class OpenedCheckpoint:
    """The indexes of one checkpoint folder, read and verified, and its other files ready to be read.

    Attributes:
        manifest: of the folder.
        tree: the state, as `core.checkpoint.tree` writes it.
        chunks: of each leaf that isn't empty, by name.
        files: with the bytes of tensors, by name.
    """

    def __init__(self, folder: Folder, raw_manifest: bytes) -> None:
        """Read the indexes.

        Args:
            folder: of the checkpoint.
            raw_manifest: what it has as its manifest now.

        Raises:
            FileNotFoundError: a file that the manifest names is missing.
            CheckpointCorruptedError: a file is damaged; it is named.
        """
        self.folder = folder
        self.manifest = manifest.from_bytes(raw_manifest, folder.name_of(manifest.NAME))
        self.chunks: dict[str, list[SavedChunk]] = {}
        self.files: dict[str, File] = {}
        self.tree: Any = None
        for name in self.manifest.indexes:
            self._take_index(name)

    def _take_index(self, name: str) -> None:
        content = self._read_verified(name)
        path = self.folder.name_of(name)
        try:
            index = json.loads(content)
            self.tree = index.get("tree", self.tree)
            leaves, blocks = index["leaves"], index["blocks"]
            if leaves:
                self._take_leaves(leaves, self._open(name.replace(".json", ".data"), blocks))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointCorruptedError(f"{path!r} is not an index that core has written: {error!r}.") from None

    def _take_leaves(self, leaves: dict[str, Any], file: File) -> None:
        for leaf, chunks in leaves.items():
            taken = (SavedChunk(tuple(offsets), tuple(sizes), file, position) for offsets, sizes, position in chunks)
            self.chunks.setdefault(leaf, []).extend(taken)

    def _open(self, name: str, blocks: list[str]) -> File:
        entry = self.manifest.files[name]
        if digest.of_blocks(blocks) != entry.digest:
            raise CheckpointCorruptedError(f"{self.folder.name_of(name)!r} does not belong to its index.")
        self.files[name] = file = self.folder.open(name, entry.size_bytes, blocks)
        return file

    def _read_verified(self, name: str) -> bytes:
        content, entry, path = self.folder.read(name), self.manifest.files[name], self.folder.name_of(name)
        blocks = [
            digest.of_bytes(content[start : start + digest.BLOCK_BYTES])
            for start in range(0, len(content), digest.BLOCK_BYTES)
        ]
        if len(content) != entry.size_bytes or digest.of_blocks(blocks) != entry.digest:
            raise CheckpointCorruptedError(
                f"{path!r} is damaged: its content does not have the digest in the manifest. "
                "Load an earlier checkpoint."
            )
        return content

    # reading --------------------------------------------------------------------------------------------------------

    def describe(self) -> Any:
        """The state, with a `TensorDescription` in the place of each tensor."""
        return self._decode(lambda place, dtype, shape, _: TensorDescription(shape, dtype))

    def load(self, targets: Any = None) -> Any:
        """The state. Tensors without a target are on mapped memory of their own, or read.

        Raises:
            CheckpointCorruptedError: a file is damaged, or lacks a part of a tensor. No target is touched then, but on
                a file system that isn't local.
            CheckpointError: a target has another shape.
        """
        reads: list[_Read] = []

        def take(place: Place, dtype: torch.dtype, shape: tuple[int, ...], target: Any) -> Any:
            if isinstance(target, torch.Tensor) or is_sharded(target):
                self._check_shape(place, shape, target)
                reads.extend(self._fill(leaf_name(place), dtype, shape, chunks_to_fill(target)))
                return target
            return self._whole(leaf_name(place), dtype, shape, reads)

        state = self._decode(take, targets)
        for read in reads:
            read.file.verify(read.start, read.stop)
        with torch.no_grad():
            for read in reads:
                read.put(read.file.view(read.start, read.stop))
        return state

    def verify(self) -> None:
        """Read every byte.

        Raises:
            CheckpointCorruptedError: one of them isn't what was written; its file is named.
        """
        for file in self.files.values():
            for start in range(0, file.size_bytes, digest.BLOCK_BYTES):
                file.view(start, min(start + digest.BLOCK_BYTES, file.size_bytes))
        self._decode(self._check_complete)

    def _decode(self, tensor: Callable[..., Any], targets: Any = None) -> Any:
        try:
            return Decoder(tensor, self._array).decode(self.tree, (), targets)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise CheckpointCorruptedError(
                f"{str(self.folder)!r} holds something that this release of core can't read: {error!r}."
            ) from error

    def _array(self, place: Place, num_bytes: int) -> memoryview:
        (chunk,) = self._chunks_of(leaf_name(place), (num_bytes,))
        return chunk.file.view(chunk.position, chunk.position + num_bytes)

    def _whole(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], reads: list[_Read]) -> torch.Tensor:
        chunks = self._chunks_of(name, shape)
        if len(chunks) == 1:
            start = chunks[0].position
            view = chunks[0].file.view(start, start + math.prod(shape) * dtype.itemsize)
            return torch.frombuffer(view, dtype=dtype).view(shape)
        whole = torch.empty(shape, dtype=dtype)
        reads.extend(self._fill(name, dtype, shape, chunks_to_fill(whole)))
        return whole

    def _fill(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], wanted: Sequence[Chunk]) -> Iterator[_Read]:
        saved = self._chunks_of(name, shape)
        if wanted and len(saved) == 1 and wanted[0].sizes == shape:
            yield _read_of(saved[0], dtype, (0,) * len(shape), shape, wanted[0].tensor)
        elif wanted and saved:
            yield from _overlaps(name, dtype, shape, saved, wanted)

    def _chunks_of(self, name: str, shape: tuple[int, ...]) -> list[SavedChunk]:
        chunks = self.chunks.get(name, [])
        if sum(math.prod(chunk.sizes) for chunk in chunks) != math.prod(shape):
            raise CheckpointCorruptedError(
                f"{str(self.folder)!r} is incomplete: not all parts of {readable(tuple(json.loads(name)))!r}, of shape "
                f"{shape}, are in its files. Load an earlier checkpoint."
            )
        return chunks

    def _check_complete(self, place: Place, dtype: torch.dtype, shape: tuple[int, ...], target: Any) -> None:
        self._chunks_of(leaf_name(place), shape)

    def _check_shape(self, place: Place, shape: tuple[int, ...], target: Any) -> None:
        if shape_of(target) != shape:
            raise CheckpointError(
                f"{readable(place)!r} has shape {shape} in {str(self.folder)!r} and {shape_of(target)} here."
            )


def _overlaps(
    name: str, dtype: torch.dtype, shape: tuple[int, ...], saved: list[SavedChunk], wanted: Sequence[Chunk]
) -> Iterator[_Read]:
    """What of each saved box belongs to each wanted one, by torch's own resharding."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

    def boxes(chunks: Sequence[SavedChunk] | Sequence[Chunk]) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)) for chunk in chunks]

    described = TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(shape), boxes(saved))
    for item in create_read_items_for_chunk_list(name, described, boxes(wanted)):
        assert item.storage_index.index is not None
        assert item.dest_index.index is not None
        target = wanted[item.dest_index.index].tensor
        for dim, (offset, length) in enumerate(zip(item.dest_offsets, item.lengths, strict=True)):
            target = target.narrow(dim, offset, length)
        chunk = saved[item.storage_index.index]
        yield _read_of(chunk, dtype, tuple(item.storage_offsets), tuple(item.lengths), target)


def _read_of(
    chunk: SavedChunk, dtype: torch.dtype, offsets: tuple[int, ...], lengths: tuple[int, ...], target: torch.Tensor
) -> _Read:
    first, last = box_span(chunk.sizes, offsets, lengths)

    def put(view: memoryview) -> None:
        target.copy_(box_of(view, dtype, chunk.sizes, lengths))

    start = chunk.position + first * dtype.itemsize
    return _Read(chunk.file, start, chunk.position + last * dtype.itemsize, put)
