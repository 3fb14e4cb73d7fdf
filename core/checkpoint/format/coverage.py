"""The test that chunks cover a tensor: each of its elements once, and nothing else.

A range of one dim is the difference of its ends, a chunk is the product of its ranges: written out, a polynomial in the
ends. The polynomials of chunks that cover a tensor have that of the whole tensor as their sum, and those of other
chunks have another sum. So it is enough to compare values at a point that can't be foreseen, where different ones agree
once in 2**50 times. Chunks that several ranks have are summed up by each for itself: one number stands for all of them.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Place = tuple[Sequence[int], Sequence[int]]
    """Offsets and sizes of a chunk."""


class CoverageCheck:
    """The point at which polynomials are compared.

    Args:
        key: the same where values are compared; a secret one by default.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or os.urandom(16)
        self._coordinate = functools.cache(self._of_text)

    def value(self, name: str, chunks: Iterable[Place]) -> int:
        """The sum of chunks of the tensor `name`."""
        coordinate, total = self._coordinate, 0
        for offsets, sizes in chunks:
            volume = 1
            for dim, (start, size) in enumerate(zip(offsets, sizes, strict=True)):
                volume *= coordinate(f"{dim},{start}") - coordinate(f"{dim},{start + size}")
            total += volume
        # A factor for each tensor, so that a hole in one isn't filled by an overlap in another.
        return coordinate(name) * total

    def _of_text(self, text: str) -> int:
        # Coordinates of 64 bits. By the lemma of Schwartz and Zippel, two polynomials of degree d, here the number of
        # dims and one, agree at such a point with a probability of at most d / 2**64.
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=self._key).digest(), "big")


def covers(shape: Sequence[int], chunks: Sequence[Place], check: CoverageCheck | None = None) -> bool:
    """Whether chunks, of which none is empty, cover a tensor of this shape, each element once.

    Args:
        shape: of the tensor.
        chunks: in it.
        check: a secret one that remembers its coordinates, if many tensors are looked at.
    """
    if not math.prod(shape):
        return not chunks
    whole = ((0,) * len(shape), tuple(shape))
    if len(chunks) == 1:
        return chunks[0] == whole
    if any(len(offsets) != len(shape) or len(sizes) != len(shape) for offsets, sizes in chunks):
        return False
    check = check or CoverageCheck()
    return check.value("", chunks) == check.value("", [whole])


def covers_chunk(wanted: Place, chunks: Iterable[Place]) -> bool:
    """Whether chunks cover one that is wanted; their parts that lie elsewhere don't count."""
    offsets, sizes = wanted
    if not math.prod(sizes):
        return True
    parts = []
    for chunk in chunks:
        if len(chunk[0]) != len(offsets) or len(chunk[1]) != len(offsets):
            return False
        if (part := overlap(wanted, chunk)) is not None:
            parts.append(part)
    if len(parts) == 1:
        return parts[0] == (tuple(offsets), tuple(sizes))
    check = CoverageCheck()
    return check.value("", parts) == check.value("", [wanted])


def overlap(one: Place, other: Place) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The part that two chunks have in common; None if nothing."""
    starts: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    # Written out: a load asks it of each chunk of each tensor, and most have nothing in common.
    for first, first_size, second, second_size in zip(*one, *other, strict=True):
        start = first if first > second else second
        size = min(first + first_size, second + second_size) - start
        if size <= 0:
            return None
        starts, sizes = (*starts, start), (*sizes, size)
    return starts, sizes
