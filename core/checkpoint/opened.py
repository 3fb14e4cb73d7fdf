"""A checkpoint folder that is being read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from core.checkpoint import digest, manifest
from core.checkpoint.memory import ALIGNMENT_BYTES, box_of, box_span
from core.checkpoint.shards import chunks_to_fill, shape_of
from core.checkpoint.tiling import tile
from core.checkpoint.tree import Decoder, KeyPath, is_sharded, leaf_name, readable, shape_from
from core.contract.errors import CheckpointCorruptedError, CheckpointError
from core.contract.sharded_leaf import Chunk, TensorDescription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from core.checkpoint.folder import Folder
    from core.checkpoint.verified_file import MappedFile, RemoteFile

    File: TypeAlias = MappedFile | RemoteFile

_MAX_COPIES = 64
"""The most copies in memory of the bytes of the files: leaves that share memory share it in the files."""


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
        manifest.note_time(self.manifest.saved_at_ns)
        self.chunks: dict[str, list[SavedChunk]] = {}
        self.files: dict[str, File] = {}
        self.tree: Any = None
        self._num_copied = 0
        self._wholes: dict[Any, torch.Tensor] = {}
        for name in self.manifest.indexes:
            self._take_index(name)

    def _take_index(self, name: str) -> None:
        content = self._read_verified(name)
        path = self.folder.name_of(name)
        try:
            index = json.loads(content, parse_constant=_refuse_constant)
            # The index of rank 0 alone has it.
            self.tree = index.get("tree", self.tree)
            leaves, blocks = index["leaves"], index["blocks"]
            if leaves:
                self._take_leaves(leaves, self._open(name.replace(".json", ".data"), blocks))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointCorruptedError(f"{path!r} is not an index that core has written: {error!r}.") from None

    def _take_leaves(self, leaves: dict[str, Any], file: File) -> None:
        for leaf, chunks in leaves.items():
            self.chunks.setdefault(leaf, []).extend(_chunk_from(*chunk, file=file) for chunk in chunks)

    def _open(self, name: str, blocks: list[str]) -> File:
        entry = self.manifest.files[name]
        # The manifest's digest is made of those of the blocks, which the index lists; `-(-a // b)` rounds up.
        if digest.of_blocks(blocks) != entry.digest or len(blocks) != -(-entry.size_bytes // digest.BLOCK_BYTES):
            raise CheckpointCorruptedError(f"{self.folder.name_of(name)!r} does not belong to its index.")
        self.files[name] = file = self.folder.open(name, entry.size_bytes, blocks)
        return file

    def _read_verified(self, name: str) -> bytes:
        entry, path = self.manifest.files[name], self.folder.name_of(name)
        if entry.size_bytes > manifest.MAX_INDEX_BYTES:
            raise CheckpointCorruptedError(
                f"{path!r} has {entry.size_bytes:,} bytes, and core writes at most {manifest.MAX_INDEX_BYTES:,}."
            )
        content = self.folder.read(name, entry.size_bytes)
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
        """The state, with a `TensorDescription` in the place of each tensor, whose bytes are there.

        Raises:
            CheckpointCorruptedError: a file lacks a part of a tensor.
        """

        def take(key_path: KeyPath, dtype: torch.dtype, shape: tuple[int, ...], _: Any) -> TensorDescription:
            self._chunks_of(leaf_name(key_path), dtype.itemsize, shape)
            return TensorDescription(shape, dtype)

        return self._decode(take)

    def load(self, targets: Any = None) -> Any:
        """The state. Tensors without a target are on mapped memory of their own, or read.

        Raises:
            CheckpointCorruptedError: a file is damaged, or lacks a part of a tensor. No target is touched then, but on
                a file system that isn't local.
            CheckpointError: a target has another shape.
        """
        reads: list[_Read] = []

        def take(key_path: KeyPath, dtype: torch.dtype, shape: tuple[int, ...], target: Any) -> Any:
            saved = self._chunks_of(leaf_name(key_path), dtype.itemsize, shape)
            if isinstance(target, torch.Tensor) or is_sharded(target):
                self._check_shape(key_path, shape, target)
                reads.extend(_reads(saved, dtype, shape, chunks_to_fill(target)))
                return target
            return self._whole(saved, dtype, shape, reads)

        # First planned, then verified, then written: damage is found while all targets are as they were.
        state = self._decode(take, targets)
        for read in reads:
            read.file.verify(read.start, read.stop)
        with torch.no_grad():
            for read in reads:
                read.put(read.file.view(read.start, read.stop))
        return state

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Read every byte.

        Args:
            progress: called after each block, with the bytes that have been read and those of all.

        Raises:
            CheckpointCorruptedError: one of them isn't what was written; its file is named.
        """
        done, total = 0, sum(file.size_bytes for file in self.files.values())
        for file in self.files.values():
            for start in range(0, file.size_bytes, digest.BLOCK_BYTES):
                stop = min(start + digest.BLOCK_BYTES, file.size_bytes)
                file.view(start, stop)  # and not `verify`: a remote file is verified only as it is fetched
                done += stop - start
                if progress is not None:
                    progress(done, total)
        self.describe()

    def _decode(self, tensor: Callable[..., Any], targets: Any = None) -> Any:
        self._num_copied, self._wholes = 0, {}
        try:
            state = Decoder(tensor, self._array).decode(self.tree, (), targets)
            if not isinstance(state, dict):
                raise TypeError(f"a {type(state).__name__}, where a state was expected")
            return state
        # The last two say something of the machine, and nothing of the content.
        except (CheckpointCorruptedError, _UnfitTargetError, OSError, MemoryError):
            raise
        except Exception as error:  # whatever Python, NumPy and torch say of what they can't make anything of
            raise CheckpointCorruptedError(
                f"{str(self.folder)!r} holds something that this release of core can't read: {error!r}."
            ) from error

    def _array(self, key_path: KeyPath, num_bytes: int) -> memoryview:
        (chunk,) = self._chunks_of(leaf_name(key_path), 1, (num_bytes,))
        self._count_copy(num_bytes)
        return chunk.file.view(chunk.position, chunk.position + num_bytes)

    def _whole(
        self, saved: list[SavedChunk], dtype: torch.dtype, shape: tuple[int, ...], reads: list[_Read]
    ) -> torch.Tensor:
        # One box lies in the file as the tensor does in memory, and is used where it is mapped.
        if len(saved) == 1:
            start = saved[0].position
            view = saved[0].file.view(start, start + math.prod(shape) * dtype.itemsize)
            return torch.frombuffer(view, dtype=dtype).view(shape)
        key = (dtype, shape, frozenset(saved))
        # Several boxes are put together in new memory. Empty tensors have no boxes, and so no key of their own.
        if not saved or key not in self._wholes:  # leaves that shared memory when they were saved share it again
            self._count_copy(math.prod(shape) * dtype.itemsize)
            self._wholes[key] = whole = _empty(dtype, shape)
            reads.extend(_reads(saved, dtype, shape, chunks_to_fill(whole)))
        return self._wholes[key]

    def _count_copy(self, num_bytes: int) -> None:
        self._num_copied += num_bytes
        there = sum(file.size_bytes for file in self.files.values())
        if self._num_copied > _MAX_COPIES * there:
            raise CheckpointCorruptedError(
                f"{str(self.folder)!r} claims more than {_MAX_COPIES} times the {there:,} bytes that are in its files."
            )

    def _chunks_of(self, name: str, itemsize: int, shape: tuple[int, ...]) -> list[SavedChunk]:
        """The boxes of a tensor, which tile it, and whose bytes are in the files."""
        chunks = self.chunks.get(name, [])
        if not tile(shape, [(chunk.offsets, chunk.sizes) for chunk in chunks]):
            raise CheckpointCorruptedError(
                f"{str(self.folder)!r} is incomplete: the parts of {readable(tuple(json.loads(name)))!r} in its files "
                f"don't cover its shape {shape}, each element once. Load an earlier checkpoint."
            )
        for chunk in chunks:
            if chunk.position + math.prod(chunk.sizes) * itemsize > chunk.file.size_bytes:
                raise CheckpointCorruptedError(
                    f"{chunk.file.path!r} is too short for {readable(tuple(json.loads(name)))!r}, of shape {shape}."
                )
        return chunks

    def _check_shape(self, key_path: KeyPath, shape: tuple[int, ...], target: Any) -> None:
        if shape_of(target) != shape:
            raise _UnfitTargetError(
                f"{readable(key_path)!r} has shape {shape} in {str(self.folder)!r} and {shape_of(target)} here."
            )


class _UnfitTargetError(CheckpointError):
    """A tensor to fill is of another shape."""


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name}, which isn't JSON")


def _chunk_from(offsets: Any, sizes: Any, position: Any, *, file: File) -> SavedChunk:
    """A box that an index names.

    Raises:
        TypeError, ValueError: it has none or a negative size, or no place in a file.
    """
    if type(position) is not int or position < 0 or position % ALIGNMENT_BYTES:
        raise ValueError(f"a position of {position!r}")
    chunk = SavedChunk(shape_from(offsets), shape_from(sizes), file, position)
    if not math.prod(chunk.sizes):
        raise ValueError(f"an empty box of sizes {sizes}")
    return chunk


def _empty(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    try:
        return torch.empty(shape, dtype=dtype)
    except RuntimeError as error:
        raise MemoryError(f"a tensor of type {dtype} and shape {shape} can't be made: {error}") from None


def _reads(
    saved: list[SavedChunk], dtype: torch.dtype, shape: tuple[int, ...], wanted: Sequence[Chunk]
) -> Iterator[_Read]:
    # The usual case needs no intersections, nor the import of torch's resharding.
    if wanted and len(saved) == 1 and wanted[0].sizes == shape:
        yield _read_of(saved[0], dtype, (0,) * len(shape), shape, wanted[0].tensor)
    elif wanted and saved:
        yield from _overlaps(dtype, shape, saved, wanted)


def _overlaps(
    dtype: torch.dtype, shape: tuple[int, ...], saved: list[SavedChunk], wanted: Sequence[Chunk]
) -> Iterator[_Read]:
    """The parts of each saved box that belong to each wanted one, by torch's own resharding."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

    def boxes(chunks: Sequence[SavedChunk] | Sequence[Chunk]) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)) for chunk in chunks]

    described = TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(shape), boxes(saved))
    for item in create_read_items_for_chunk_list("", described, boxes(wanted)):
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
    # One range from the box's first element to its last. What lies between its rows is verified too, not copied.
    first, last = box_span(chunk.sizes, offsets, lengths)

    def put(view: memoryview) -> None:
        target.copy_(box_of(view, dtype, chunk.sizes, lengths))

    start = chunk.position + first * dtype.itemsize
    return _Read(chunk.file, start, chunk.position + last * dtype.itemsize, put)
