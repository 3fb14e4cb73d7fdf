"""A checkpoint folder that is being read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import torch

from core.checkpoint.format import digest, manifest, streaming
from core.checkpoint.format.chunk_reads import ChunkRead, SavedChunk, reads_of
from core.checkpoint.format.coverage import covers, whole_place
from core.checkpoint.state.shards import chunks_to_fill, is_sharded, shape_of
from core.checkpoint.state.tree import AT_ONCE, Decoder, leaf_name, readable
from core.contract.errors import CheckpointCorruptedError, CheckpointError
from core.contract.sharded_leaf import TensorDescription

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from core.checkpoint.copies.tensor_bytes import Shape
    from core.checkpoint.folder.folder import Folder
    from core.checkpoint.format.coverage import Place
    from core.checkpoint.format.verified_file import VerifiedFile
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
        chunks: of the leaves that aren't empty, by name and place, as far as indexes were read.
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
        self.chunks: dict[str, dict[Place, SavedChunk]] = {}
        self.files: dict[str, VerifiedFile] = {}
        self.tree: Any = None
        place = (share[0] + 0.5) / share[1] * self.manifest.world_size - 0.5
        first, *others = self.manifest.indexes
        ranks = {name: int(name.partition("-")[2].removesuffix(".json")) for name in others}
        self._unread = dict.fromkeys(sorted(ranks, key=lambda name: abs(ranks[name] - place)))
        self._take_index(first)

    def _take_index(self, name: str) -> None:
        entry, path = self.manifest.files[name], self.folder.name_of(name)
        content = self.folder.read(name, entry.size_bytes)
        if not digest.is_content(BytesIO(content), entry.digest, self.manifest.block_bytes):
            raise CheckpointCorruptedError(
                f"{path!r} is damaged: its content does not have the digest in the manifest. "
                "Load an earlier checkpoint."
            )
        try:
            index = json.loads(content)
            # The index of rank 0 alone has it.
            self.tree = index.get("tree", self.tree)
            if index["leaves"]:
                # The file that has the bytes of these leaves.
                data = name.replace(".json", ".data")
                blocks = digest.Blocks(index["blocks"], self.manifest.block_bytes)
                file = self.folder.open(data, self.manifest.files[data].size_bytes, blocks)
                self.files[data] = file
                for leaf, chunks in index["leaves"].items():
                    known = self.chunks.setdefault(leaf, {})
                    for offsets, sizes, position in chunks:
                        chunk = SavedChunk(tuple(offsets), tuple(sizes), file, position)
                        known[chunk.offsets, chunk.sizes] = chunk
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointCorruptedError(
                f"{path!r} is not an index that core has written: {error!r}."
            ) from None

    # reading --------------------------------------------------------------------------------------

    def describe(self, *, looks: bool = False) -> Any:
        """The state, with a `TensorDescription` in the place of each tensor.

        Args:
            looks: for the parts of each tensor, too, which are in the indexes of all ranks. `load`
                does in any case.

        Raises:
            CheckpointCorruptedError: a file lacks a part of a tensor.
        """
        if not looks:
            return self._decode(None)

        def take(
            key_path: KeyPath, dtype: torch.dtype, shape: Shape, _: object
        ) -> TensorDescription:
            self._chunks_of(leaf_name(key_path), [whole_place(shape)])
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
        known: dict[Any, Any] = {}
        wholes: dict[Any, torch.Tensor] = {}
        has_targets = False

        def take(key_path: KeyPath, dtype: torch.dtype, shape: Shape, target: Any) -> Any:
            nonlocal has_targets
            name = leaf_name(key_path)
            if isinstance(target, torch.Tensor) or is_sharded(target):
                if shape_of(target) != shape:
                    raise CheckpointError(
                        f"{readable(key_path)!r} has shape {shape} in {str(self.folder)!r} and "
                        f"{shape_of(target)} here."
                    )
                has_targets = True
                wanted = {
                    (tuple(chunk.offsets), tuple(chunk.sizes)): chunk.tensor
                    for chunk in chunks_to_fill(target, known)
                    if chunk.tensor.numel()
                }
                reads.extend(reads_of(self._chunks_of(name, wanted), dtype, wanted))
                return target
            place = whole_place(shape)
            saved = self._chunks_of(name, [place])
            # Beside what is filled, small ones are read with it: of a mapping their whole block
            # would be read again.
            is_small = math.prod(shape) * dtype.itemsize <= _SMALL_BYTES
            is_read = is_small and targets is not None and target is not AT_ONCE
            if len(saved) == 1 and not is_read:
                return _mapped(saved[place], dtype, shape)
            # Leaves that shared memory when they were saved share it again.
            key = (dtype, shape, frozenset(saved.values()))
            if not saved or key not in wholes:
                wholes[key] = _empty(dtype, shape)
                reads.extend(reads_of(saved, dtype, {place: wholes[key]}))
            return wholes[key]

        state = self._decode(take, targets)
        return Plan(state, _distinct(reads), has_targets)

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
        for name in indexes:
            if name in self._unread:
                del self._unread[name]
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
        try:
            return dict(Decoder(tensor, self._array).decode(self.tree, (), targets))
        # The last two say something of the machine, and nothing of the content.
        except (CheckpointError, OSError, MemoryError):
            raise
        except Exception as error:
            # whatever Python, NumPy and torch say of what they can't make anything of
            raise CheckpointCorruptedError(
                f"{str(self.folder)!r} holds something that this release of core can't read: "
                f"{error!r}."
            ) from error

    def _array(self, key_path: KeyPath, num_bytes: int) -> memoryview:
        (chunk,) = self._chunks_of(leaf_name(key_path), [whole_place((num_bytes,))]).values()
        return chunk.file.view(chunk.position, chunk.position + num_bytes)

    def _chunks_of(self, name: str, wanted: Collection[Place]) -> dict[Place, SavedChunk]:
        """The chunks of a tensor, which cover the places that are wanted of it."""
        num_more = 1
        while True:
            saved = self.chunks.get(name, {})
            # The usual case, the same chunks as were saved, needs no intersections.
            if saved.keys() >= set(wanted) or all(covers(place, list(saved)) for place in wanted):
                return saved
            if not self._unread:
                raise CheckpointCorruptedError(
                    f"{str(self.folder)!r} is incomplete: the parts of "
                    f"{readable(tuple(json.loads(name)))!r} in its files don't cover its shape, "
                    "each element once. Load an earlier checkpoint."
                )
            # Twice as many each time, so that looking whether it is enough costs little where all
            # are needed.
            for index in list(self._unread)[:num_more]:
                del self._unread[index]
                self._take_index(index)
            num_more *= 2


def _mapped(saved: SavedChunk, dtype: torch.dtype, shape: Shape) -> torch.Tensor:
    """A tensor on the memory that is mapped from the file, where it lies as in memory."""
    stop = saved.position + math.prod(shape) * dtype.itemsize
    return torch.frombuffer(saved.file.view(saved.position, stop), dtype=dtype).view(shape)


def _empty(dtype: torch.dtype, shape: Shape) -> torch.Tensor:
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
        place: Any = id(read)
        # Only where there is memory: other tensors may all have the address 0.
        if read.memory is not None:
            place = (id(read.saved.file), read.start, read.stop, read.target.data_ptr())
        places[place] = read
    return list(places.values())
