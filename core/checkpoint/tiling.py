"""The test that boxes tile a tensor: cover each of its elements once, and nothing else.

A range of one dim is the difference of its ends, a box is the product of its ranges: written out, a polynomial in the
ends. The polynomials of boxes that tile a tensor have that of the whole tensor as their sum, and those of other boxes
have another sum. So it is enough to compare values at a point that can't be foreseen, where different ones agree
once in 2**50 times. Boxes that several ranks have are summed up by each for itself: one number tells all of them.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Box = tuple[Sequence[int], Sequence[int]]
    """Offsets and sizes."""


class Point:
    """The point at which polynomials are compared.

    Args:
        key: the same where values are compared; a secret one by default.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or os.urandom(16)
        self._coordinate = functools.cache(self._of_text)

    def value(self, name: str, boxes: Iterable[Box]) -> int:
        """The sum of boxes of the tensor `name`."""
        coordinate, total = self._coordinate, 0
        for offsets, sizes in boxes:
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


def tile(shape: Sequence[int], boxes: Sequence[Box], point: Point | None = None) -> bool:
    """Tell whether boxes, of which none is empty, tile a tensor of this shape.

    Args:
        shape: of the tensor.
        boxes: in it.
        point: a secret one that remembers its coordinates, if many tensors are looked at.
    """
    if not math.prod(shape):
        return not boxes
    whole = ((0,) * len(shape), tuple(shape))
    if len(boxes) == 1:
        return boxes[0] == whole
    if any(len(offsets) != len(shape) or len(sizes) != len(shape) for offsets, sizes in boxes):
        return False
    point = point or Point()
    return point.value("", boxes) == point.value("", [whole])


def tile_box(wanted: Box, boxes: Iterable[Box]) -> bool:
    """Tell whether the parts of boxes within one that is wanted tile it; what lies elsewhere doesn't count."""
    offsets, sizes = wanted
    if not math.prod(sizes):
        return True
    parts = []
    for box in boxes:
        if len(box[0]) != len(offsets) or len(box[1]) != len(offsets):
            return False
        if (part := common(wanted, box)) is not None:
            parts.append(part)
    if len(parts) == 1:
        return parts[0] == (tuple(offsets), tuple(sizes))
    point = Point()
    return point.value("", parts) == point.value("", [wanted])


def common(one: Box, other: Box) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The part that two boxes have in common; None if nothing."""
    starts: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    # Written out: a load asks it of each box of each tensor, and most have nothing in common.
    for first, first_size, second, second_size in zip(*one, *other, strict=True):
        start = first if first > second else second
        size = min(first + first_size, second + second_size) - start
        if size <= 0:
            return None
        starts, sizes = (*starts, start), (*sizes, size)
    return starts, sizes
