"""The test that chunks cover a tensor: each of its elements once, and nothing else."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.checkpoint.copies.tensor_bytes import Shape

    Place = tuple[Shape, Shape]
    """Offsets and sizes of a chunk."""


def whole_place(shape: Shape) -> Place:
    """The place of a whole tensor."""
    return (0,) * len(shape), shape


def covers(wanted: Place, chunks: Sequence[Place]) -> bool:
    """Whether chunks cover one that is wanted, each of its elements once; their parts that lie
    elsewhere don't count.
    """
    parts = list(filter(None, [overlap(wanted, chunk) for chunk in chunks]))
    return sum(math.prod(sizes) for _, sizes in parts) == math.prod(wanted[1]) and _are_apart(parts)


def lie_apart(shape: Shape, chunks: Sequence[Place]) -> bool:
    """Whether chunks, of which none is empty, lie within a tensor of this shape, and no two of them
    overlap.
    """
    whole = whole_place(shape)
    return all(overlap(whole, chunk) == chunk for chunk in chunks) and _are_apart(chunks)


def _are_apart(chunks: Sequence[Place]) -> bool:
    if len(chunks) < 2:
        return True
    if not chunks[0][0]:  # scalars
        return False
    # A sweep along the dim with the most cuts: a chunk can only overlap those that haven't ended
    # where it starts.
    dim = max(
        range(len(chunks[0][0])), key=lambda dim: len({offsets[dim] for offsets, _ in chunks})
    )
    ahead: list[Place] = []
    for chunk in sorted(chunks, key=lambda chunk: chunk[0][dim]):
        ahead = [other for other in ahead if other[0][dim] + other[1][dim] > chunk[0][dim]]
        if any(overlap(chunk, other) for other in ahead):
            return False
        ahead.append(chunk)
    return True


def overlap(one: Place, other: Place) -> tuple[Shape, Shape] | None:
    """The part that two chunks have in common; None if nothing."""
    starts: Shape = ()
    sizes: Shape = ()
    # Written out: a load asks it of each chunk of each tensor, and most have nothing in common.
    for first, first_size, second, second_size in zip(*one, *other, strict=False):
        start = first if first > second else second
        size = min(first + first_size, second + second_size) - start
        if size <= 0:
            return None
        starts, sizes = (*starts, start), (*sizes, size)
    return starts, sizes
