"""ZeRO cuts a parameter's elements, laid out in a row, into ranges; a checkpoint knows boxes of the
whole tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core import Chunk, ShardedLeaf

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class FlatRange:
    """This rank's part of one parameter.

    Attributes:
        shape: of the whole parameter.
        start: number of the first element of the whole, in the order of memory.
        size: number of elements; 0 if this rank has none.
        flat: the tensor that holds them, perhaps with those of other parameters: the master copy
            where there is one.
        offset: of the first of them in `flat`.
        group: number of the flat tensor among the optimizer's; None for what isn't trained.
    """

    shape: tuple[int, ...]
    start: int
    size: int
    flat: Tensor | None
    offset: int
    group: int | None = None

    def of(self, flat: Tensor) -> Tensor:
        """A view of the elements in a tensor that is laid out as `flat` is."""
        return flat.detach().view(-1).narrow(0, self.offset, self.size)

    def leaf(self, flat: Tensor | None, dtype: torch.dtype) -> ShardedLeaf:
        """The boxes that the range consists of, over the memory of `flat`."""
        if flat is None or not self.size:
            return ShardedLeaf(self.shape, dtype)
        elements, chunks = self.of(flat), []
        for offsets, sizes, begin in boxes(self.shape, self.start, self.start + self.size):
            part = elements.narrow(0, begin - self.start, math.prod(sizes))
            chunks.append(Chunk(offsets, sizes, part.view(sizes)))
        return ShardedLeaf(self.shape, dtype, tuple(chunks))


def boxes(
    shape: tuple[int, ...], start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """The boxes of a tensor that a range of its elements consists of: at most two for each dim but
    the last, and one.

    Args:
        shape: of the tensor.
        start: number of the range's first element.
        stop: of the one after its last.

    Yields:
        Offsets and sizes of a box, and the number of its first element.
    """
    if start >= stop:
        return
    # Elements of a row, or the one of a scalar, which has neither offsets nor sizes.
    if len(shape) < 2:
        yield ((start,) if shape else ()), ((stop - start,) if shape else ()), start
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row  # the rows that lie in the range as a whole
    # It begins and ends within one row, and touches neither end of it.
    if first > last:
        yield from _in_row(shape, last, start, stop)
        return
    # The rest of a row that began before; whole rows; the beginning of a row that goes on. Each may
    # be empty.
    yield from _in_row(shape, first - 1, start, first * row)
    if first < last:
        yield (first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:]), first * row
    yield from _in_row(shape, last, last * row, stop)


def _in_row(
    shape: tuple[int, ...], number: int, start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    # A row is a tensor of one dim fewer, whose elements are counted from its own beginning.
    base = number * math.prod(shape[1:])
    for offsets, sizes, begin in boxes(shape[1:], start - base, stop - base):
        yield (number, *offsets), (1, *sizes), begin + base


def fill(leaf: ShardedLeaf, source: Tensor | ShardedLeaf) -> None:
    """Copy this rank's chunks from a whole tensor, in place. A leaf that was filled already is left
    as it is.
    """
    import torch

    if isinstance(source, ShardedLeaf):
        parts = [chunk.tensor for chunk in source.chunks]
    else:
        parts = [source[chunk.box] for chunk in leaf.chunks]
    with torch.no_grad():
        for chunk, part in zip(leaf.chunks, parts, strict=True):
            # A checkpoint that was read into this leaf as its target hands back the same memory.
            if chunk.tensor.data_ptr() != part.data_ptr():
                chunk.tensor.copy_(part)
