"""A checkpoint folder that is being read."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from core.checkpoint.copies.tensor_bytes import ALIGNMENT_BYTES
from core.checkpoint.format import digest, manifest, streaming
from core.checkpoint.format.chunk_reads import DENSE, ChunkRead, SavedChunk, chunk_read, reads_of
from core.checkpoint.format.coverage import covers, covers_chunk
from core.checkpoint.state.shards import chunks_to_fill, is_sharded, shape_of
from core.checkpoint.state.tree import AT_ONCE, Decoder, leaf_name, readable
from core.contract.errors import CheckpointCorruptedError, CheckpointError
from core.contract.sharded_leaf import Chunk, TensorDescription

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.checkpoint.folder.folder import Folder
    from core.checkpoint.format.verified_file import File
    from core.checkpoint.state.checks import KeyPath

_VERIFIED_BYTES = 4 << 20
"""Bytes after which `progress` is called during a verification. A multiple of any block that core
has written."""

_SMALL_BYTES = 1 << 16
"""The most bytes of a tensor, such as a count of steps, that is read with what lies around it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A load that is ready: what was asked for fits what was saved.

    Attributes:
        state: what the load gives, whose tensors are filled by `fill`.
        reads: what has to be read for it.
        has_targets: whether tensors that the caller has given are among what is filled.
    """

    state: Any
    reads: list[ChunkRead]
    has_targets: bool

    def verify(self) -> None:
        """Read all that `fill` will need, and keep nothing.

        Raises:
            CheckpointCorruptedError: a file is damaged.
        """
        for read in self.reads:
            read.saved.file.verify(read.start, read.stop)

    def fill(self) -> Any:
        """The state, once all that is to be read is in its place.

        Raises:
            CheckpointCorruptedError: a file is damaged. What was filled by then is no state.
        """
        by_file: dict[int, list[ChunkRead]] = {}
        for read in self.reads:
            by_file.setdefault(id(read.saved.file), []).append(read)
        with torch.no_grad():
            # Autograd has to see that a tensor has changed, and doesn't see what the system writes
            # to its memory.
            torch.autograd.graph.increment_version(
                [read.target for read in self.reads if not read.target.is_inference()]
            )
            for reads in by_file.values():
                streaming.fill(reads[0].saved.file, reads)
        return self.state


class FolderReader:
    """One checkpoint folder. Its indexes are read and verified as they are needed, the likeliest
    first.

    There is an index for each rank that has written, and what one rank needs is in few of them: a
    load costs a rank as much as it loads, on however many the checkpoint was written.

    Attributes:
        raw_manifest: its content when it was opened.
        manifest: of the folder.
        tree: the state, as `core.checkpoint.state.tree` writes it.
        chunks: of the leaves that aren't empty, by name, as far as indexes were read.
        files: with the bytes of tensors, by name; likewise.
    """

    def __init__(
        self, folder: Folder, raw_manifest: bytes, share: tuple[int, int] = (0, 1)
    ) -> None:
        """Read the index of rank 0, which has the tree.

        Args:
            folder: of the checkpoint.
            raw_manifest: what it has as its manifest now.
            share: number of this process, and of all that load together. Its parts are likely where
                they would be if as many had written.

        Raises:
            FileNotFoundError: a file that the manifest names is missing.
            CheckpointCorruptedError: a file is damaged; it is named.
        """
        self.folder = folder
        self.raw_manifest = raw_manifest
        self.manifest = manifest.from_bytes(raw_manifest, folder.name_of(manifest.NAME))
        manifest.note_time(self.manifest.saved_at_ns)
        self.chunks: dict[str, list[SavedChunk]] = {}
        self.files: dict[str, File] = {}
        self.tree: Any = None
        self._wholes: dict[Any, torch.Tensor] = {}
        place = (share[0] + 0.5) / share[1] * self.manifest.world_size - 0.5
        ranks = {
            name: int(name.partition("-")[2].removesuffix(".json"))
            for name in self.manifest.indexes[1:]
        }
        self._unread = sorted(ranks, key=lambda name: -abs(ranks[name] - place))
        for name in self.manifest.indexes[:1]:
            self._take_index(name)

    def _take_indexes(self, number: int | None = None) -> bool:
        """Read so many more indexes, or all; True if there was one."""
        left = len(self._unread)
        for _ in range(left if number is None else min(number, left)):
            self._take_index(self._unread.pop())
        return left > 0

    def _take_index(self, name: str) -> None:
        content = self._read_verified(name)
        path = self.folder.name_of(name)
        try:
            index = json.loads(content, parse_constant=_refuse_constant)
            # The index of rank 0 alone has it.
            self.tree = index.get("tree", self.tree)
            leaves, blocks = index["leaves"], index["blocks"]
            if leaves:
                file = self._open(name.replace(".json", ".data"), blocks)
                for leaf, chunks in leaves.items():
                    for chunk in chunks:
                        self.chunks.setdefault(leaf, []).append(_chunk_from(*chunk, file=file))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointCorruptedError(
                f"{path!r} is not an index that core has written: {error!r}."
            ) from None

    def _open(self, name: str, blocks: list[str]) -> File:
        entry, described = (
            self.manifest.files[name],
            digest.Blocks(blocks, self.manifest.block_bytes),
        )
        # The manifest's digest is made of those of the blocks, which the index lists.
        if digest.of_blocks(blocks) != entry.digest or not described.describes(entry.size_bytes):
            raise CheckpointCorruptedError(
                f"{self.folder.name_of(name)!r} does not belong to its index."
            )
        self.files[name] = file = self.folder.open(name, entry.size_bytes, described)
        return file

    def _read_verified(self, name: str) -> bytes:
        entry, path = self.manifest.files[name], self.folder.name_of(name)
        content = self.folder.read(name, entry.size_bytes)
        if not digest.is_content(
            io.BytesIO(content), entry.size_bytes, entry.digest, self.manifest.block_bytes
        ):
            raise CheckpointCorruptedError(
                f"{path!r} is damaged: its content does not have the digest in the manifest. "
                "Load an earlier checkpoint."
            )
        return content

    # reading --------------------------------------------------------------------------------------

    def describe(self, *, looks: bool = False) -> Any:
        """The state, with a `TensorDescription` in the place of each tensor.

        Args:
            looks: for the parts of each tensor, too, which are in the indexes of all ranks. `load`
                does in any case.

        Raises:
            CheckpointCorruptedError: a file lacks a part of a tensor.
        """

        def take(
            key_path: KeyPath, dtype: torch.dtype, shape: tuple[int, ...], _: object
        ) -> TensorDescription:
            if looks:
                self._chunks_of(leaf_name(key_path), dtype.itemsize, shape)
            return TensorDescription(shape, dtype)

        return self._decode(take)

    def plan(self, targets: Any = None) -> Plan:
        """The reads that a load needs. Tensors without a target are on mapped memory of their own,
        or read.

        Raises:
            CheckpointCorruptedError: a file lacks a part of a tensor, or what is mapped of it is
                damaged.
            CheckpointError: a target has another shape.
        """
        reads: list[ChunkRead] = []
        filled: list[Any] = []
        known: dict[Any, Any] = {}

        def take(key_path: KeyPath, dtype: torch.dtype, shape: tuple[int, ...], target: Any) -> Any:
            name = leaf_name(key_path)
            # The usual case, a tensor that was saved in one piece, is one read.
            if (
                type(target) in DENSE
                and target.shape == shape
                and (whole := self._one_chunk(name, dtype, shape))
            ):
                filled.append(target)
                reads.append(chunk_read(whole, dtype, whole.offsets, target.detach()))
                return target
            if isinstance(target, torch.Tensor) or is_sharded(target):
                if shape_of(target) != shape:
                    raise _UnfitTargetError(
                        f"{readable(key_path)!r} has shape {shape} in {str(self.folder)!r} and "
                        f"{shape_of(target)} here."
                    )
                filled.append(target)
                wanted = chunks_to_fill(target, known)
                reads.extend(
                    reads_of(
                        self._chunks_of(name, dtype.itemsize, shape, wanted), dtype, shape, wanted
                    )
                )
                return target
            # Beside what is filled, small ones are read with it: of a mapping their whole block
            # would be read again.
            is_small = targets is not None and target is not AT_ONCE
            saved = self._chunks_of(name, dtype.itemsize, shape)
            return self._whole(saved, dtype, shape, reads, is_small=is_small)

        return Plan(self._decode(take, targets), _distinct(reads), bool(filled))

    def verify(
        self,
        progress: Callable[[int, int], None] | None = None,
        share: tuple[int, int] | None = None,
    ) -> None:
        """Read every byte, or those of every so many of the ranks that have written.

        Args:
            progress: called again and again, with the bytes that have been read and those of all.
            share: number of this process, and of all that verify together; None for one that
                verifies all by itself, and also looks whether the parts of each tensor are there.

        Raises:
            CheckpointCorruptedError: one of them isn't what was written; its file is named.
        """
        first, step = share or (0, 1)
        indexes = self.manifest.indexes[first::step]
        taken = set(indexes).intersection(self._unread)
        self._unread = [name for name in self._unread if name not in taken]
        for name in sorted(taken):
            self._take_index(name)
        # Skip files that were opened only to locate chunks.
        names = [name.replace(".json", ".data") for name in indexes]
        files = [self.files[name] for name in names if name in self.files]
        done, total = 0, sum(file.size_bytes for file in files)
        for file in files:
            for start in range(0, file.size_bytes, _VERIFIED_BYTES):
                stop = min(start + _VERIFIED_BYTES, file.size_bytes)
                file.verify(start, stop)
                done += stop - start
                if progress is not None:
                    progress(done, total)
        if share is None:
            self.describe(looks=True)

    def _decode(self, tensor: Callable[..., Any] | None, targets: object = None) -> Any:
        self._wholes = {}
        try:
            state = Decoder(tensor, self._array).decode(self.tree, (), targets)
            if not isinstance(state, dict):
                raise TypeError(f"a {type(state).__name__}, where a state was expected")
            return state
        # The last two say something of the machine, and nothing of the content.
        except (CheckpointCorruptedError, _UnfitTargetError, OSError, MemoryError):
            raise
        except Exception as error:
            # whatever Python, NumPy and torch say of what they can't make anything of
            raise CheckpointCorruptedError(
                f"{str(self.folder)!r} holds something that this release of core can't read: "
                f"{error!r}."
            ) from error

    def _array(self, key_path: KeyPath, num_bytes: int) -> memoryview:
        (chunk,) = self._chunks_of(leaf_name(key_path), 1, (num_bytes,))
        return chunk.file.view(chunk.position, chunk.position + num_bytes)

    def _whole(
        self,
        saved: list[SavedChunk],
        dtype: torch.dtype,
        shape: tuple[int, ...],
        reads: list[ChunkRead],
        *,
        is_small: bool,
    ) -> torch.Tensor:
        # One chunk lies in the file as the tensor does in memory, and is used where it is mapped.
        if len(saved) == 1:
            num_bytes = math.prod(shape) * dtype.itemsize
            if is_small and num_bytes <= _SMALL_BYTES:
                return self._small(saved[0], num_bytes, reads).view(dtype).view(shape)
            start = saved[0].position
            view = saved[0].file.view(start, start + num_bytes)
            return torch.frombuffer(view, dtype=dtype).view(shape)
        key = (dtype, shape, frozenset(saved))
        # Several chunks are put together in new memory. Empty tensors have none, and so no key of
        # their own. leaves that shared memory when they were saved share it again
        if not saved or key not in self._wholes:
            self._wholes[key] = whole = _empty(dtype, shape)
            reads.extend(reads_of(saved, dtype, shape, chunks_to_fill(whole)))
        return self._wholes[key]

    def _small(self, saved: SavedChunk, num_bytes: int, reads: list[ChunkRead]) -> torch.Tensor:
        """The bytes of a small tensor, which are to be read; the same ones for leaves that shared
        memory.
        """
        key = (saved.file.path, saved.position, num_bytes)
        if key not in self._wholes:
            self._wholes[key] = content = _empty(torch.uint8, (num_bytes,))
            whole = SavedChunk((0,), (num_bytes,), saved.file, saved.position)
            reads.append(chunk_read(whole, torch.uint8, (0,), content))
        return self._wholes[key]

    def _one_chunk(
        self, name: str, dtype: torch.dtype, shape: tuple[int, ...]
    ) -> SavedChunk | None:
        """The only chunk of a tensor, if it is the whole tensor and its bytes are in the file."""
        chunks = self.chunks.get(name, ())
        if len(chunks) != 1 or chunks[0].sizes != shape or chunks[0].offsets != (0,) * len(shape):
            return None
        (chunk,) = chunks
        fits = chunk.position + math.prod(shape) * dtype.itemsize <= chunk.file.size_bytes
        return chunk if fits else None

    def _chunks_of(
        self,
        name: str,
        itemsize: int,
        shape: tuple[int, ...],
        wanted: Sequence[Chunk] | None = None,
    ) -> list[SavedChunk]:
        """The chunks of a tensor, which cover it, or what is wanted of it, and whose bytes are in
        the files.
        """
        num_more = 1
        while not self._are_there(name, shape, wanted):
            # Twice as many each time, so that looking whether it is enough costs little where all
            # are needed.
            if not self._take_indexes(num_more):
                raise CheckpointCorruptedError(
                    f"{str(self.folder)!r} is incomplete: the parts of "
                    f"{readable(tuple(json.loads(name)))!r} in its files don't cover its shape "
                    f"{shape}, each element once. Load an earlier checkpoint."
                )
            num_more *= 2
        chunks = self.chunks.get(name, [])
        for chunk in chunks:
            if chunk.position + math.prod(chunk.sizes) * itemsize > chunk.file.size_bytes:
                raise CheckpointCorruptedError(
                    f"{chunk.file.path!r} is too short for {readable(tuple(json.loads(name)))!r}, "
                    f"of shape {shape}."
                )
        return chunks

    def _are_there(self, name: str, shape: tuple[int, ...], wanted: Sequence[Chunk] | None) -> bool:
        places = [(chunk.offsets, chunk.sizes) for chunk in self.chunks.get(name, [])]
        if wanted is None or any(chunk.sizes == shape for chunk in wanted):
            return covers(shape, places)
        return all(covers_chunk((chunk.offsets, chunk.sizes), places) for chunk in wanted)


class _UnfitTargetError(CheckpointError):
    """A tensor to fill is of another shape."""


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name}, which isn't JSON")


def _chunk_from(offsets: Any, sizes: Any, position: Any, *, file: File) -> SavedChunk:
    """A chunk that an index names.

    Raises:
        TypeError, ValueError: it has none or a negative size, or no place in a file.
    """
    if type(position) is not int or position < 0 or position % ALIGNMENT_BYTES:
        raise ValueError(f"a position of {position!r}")
    ends = tuple(offsets + sizes)
    chunk = SavedChunk(ends[: len(offsets)], ends[len(offsets) :], file, position)
    if not math.prod(chunk.sizes):
        raise ValueError(f"an empty chunk of sizes {sizes}")
    return chunk


def _empty(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    try:
        return torch.empty(shape, dtype=dtype)
    except RuntimeError as error:
        raise MemoryError(
            f"a tensor of type {dtype} and shape {shape} can't be made: {error}"
        ) from None


def _distinct(reads: list[ChunkRead]) -> list[ChunkRead]:
    """The same reads without repetitions: what is tied here and was tied then is read once."""
    places: dict[Any, ChunkRead] = {}
    for read in reads:
        target, place = read.target, (id(read.saved.file), read.start, read.stop)
        # Only where there is memory: other tensors may all have the address 0.
        is_here = read.memory is not None
        places[
            (*place, target.data_ptr(), target.shape, target.stride()) if is_here else id(read)
        ] = read
    return list(places.values())
