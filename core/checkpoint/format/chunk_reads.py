"""Chunks of tensors that are to be read from the files of a checkpoint, each into its place."""

from __future__ import annotations

import math
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

import torch

from core.checkpoint.copies.tensor_bytes import bytes_of, strides_of
from core.checkpoint.format.coverage import overlap

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from core.checkpoint.copies.tensor_bytes import Shape
    from core.checkpoint.format.coverage import Place
    from core.checkpoint.format.verified_file import VerifiedFile

_DENSE = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class SavedChunk(NamedTuple):
    """A chunk of a tensor, and where its bytes are."""

    offsets: Shape
    sizes: Shape
    file: VerifiedFile
    position: int


class ChunkRead(NamedTuple):
    """A chunk within a saved one, and its place in memory.

    Attributes:
        saved: the chunk that the file has.
        dtype: as it was saved.
        offsets: of the chunk in `saved`.
        target: of the chunk's shape; the elements are copied to it.
        start: its first byte in the file.
        stop: the byte after its last one. What lies between the chunk's rows is read and verified
            too, not copied.
        memory: the target's own bytes, if those of the file can go there as they are.
    """

    saved: SavedChunk
    dtype: torch.dtype
    offsets: Shape
    target: torch.Tensor
    start: int
    stop: int
    memory: memoryview | None

    def put(self, content: torch.Tensor, *, in_background: bool = False) -> None:
        """Copy the elements to their place.

        Args:
            content: the bytes from `start` to `stop`, as a tensor.
            in_background: a device may go on copying after this has returned.
        """
        strides = strides_of(self.saved.sizes)
        elements = content.view(self.dtype).as_strided(self.target.shape, strides)
        self.target.copy_(elements, non_blocking=in_background)

    def parts(self, max_bytes: int) -> Iterator[ChunkRead]:
        """Reads of parts of the chunk, of at most `max_bytes` from the first to the last one of
        each.
        """
        lengths = tuple(self.target.shape)
        dim = next((dim for dim, length in enumerate(lengths) if length > 1), None)
        if self.stop - self.start <= max_bytes or dim is None:
            yield self
            return
        row_bytes = strides_of(self.saved.sizes)[dim] * self.dtype.itemsize
        step = max(1, max_bytes // row_bytes)
        for begin in range(0, lengths[dim], step):
            offsets = (*self.offsets[:dim], self.offsets[dim] + begin, *self.offsets[dim + 1 :])
            rows = self.target.narrow(dim, begin, min(step, lengths[dim] - begin))
            yield from chunk_read(self.saved, self.dtype, offsets, rows).parts(max_bytes)


def chunk_read(
    saved: SavedChunk, dtype: torch.dtype, offsets: Shape, target: torch.Tensor
) -> ChunkRead:
    """The read that fills `target` from the chunk of its shape that begins at `offsets` of the
    saved one.
    """
    lengths = tuple(target.shape)
    # The usual case, the whole chunk, has all of its bytes.
    first, last = 0, math.prod(lengths)
    if lengths != saved.sizes:
        strides = strides_of(saved.sizes)
        first = sum(map(mul, offsets, strides))
        last = first + 1 + sum(map(mul, (length - 1 for length in lengths), strides))
    start, stop = saved.position + first * dtype.itemsize, saved.position + last * dtype.itemsize
    memory = None
    # A conjugated or negated view is a flag on bytes that mean something else; a subclass may have
    # no bytes.
    if (
        type(target) in _DENSE
        and target.dtype == dtype
        and target.device.type == "cpu"
        and target.is_contiguous()
        and stop - start == target.nbytes
        and not (target.is_conj() or target.is_neg())
    ):
        memory = bytes_of(target)
    return ChunkRead(saved, dtype, offsets, target, start, stop, memory)


def reads_of(
    saved: Mapping[Place, SavedChunk], dtype: torch.dtype, wanted: Mapping[Place, torch.Tensor]
) -> list[ChunkRead]:
    """The reads that fill the wanted places of a tensor from the saved ones, which cover them."""
    reads = []
    for place, target in wanted.items():
        same = saved.get(place)
        if same is not None:
            reads.append(chunk_read(same, dtype, (0,) * len(same.sizes), target))
            continue
        for found in saved.values():
            part = overlap(place, (found.offsets, found.sizes))
            if part is not None:
                starts, sizes = part
                rows = target
                for dim, (start, size) in enumerate(zip(starts, sizes, strict=True)):
                    rows = rows.narrow(dim, start - place[0][dim], size)
                within = zip(starts, found.offsets, strict=True)
                offsets = tuple(start - offset for start, offset in within)
                reads.append(chunk_read(found, dtype, offsets, rows))
    return reads
