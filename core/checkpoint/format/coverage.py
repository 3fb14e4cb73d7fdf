"""The test that chunks cover a tensor: each of its elements once, and nothing else."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    Place = tuple[Sequence[int], Sequence[int]]
    """Offsets and sizes of a chunk."""


def covers(shape: Sequence[int], chunks: Sequence[Place]) -> bool:
    """Whether chunks, of which none is empty, cover a tensor of this shape, each element once."""
    return sum(math.prod(sizes) for _, sizes in chunks) == math.prod(shape) and lie_apart(
        shape, chunks
    )


def covers_chunk(wanted: Place, chunks: Sequence[Place]) -> bool:
    """Whether chunks cover one that is wanted; their parts that lie elsewhere don't count."""
    if any(
        len(offsets) != len(wanted[0]) or len(sizes) != len(wanted[0]) for offsets, sizes in chunks
    ):
        return False
    parts = [part for chunk in chunks if (part := overlap(wanted, chunk)) is not None]
    return sum(math.prod(sizes) for _, sizes in parts) == math.prod(wanted[1]) and _are_apart(parts)


def lie_apart(shape: Sequence[int], chunks: Sequence[Place]) -> bool:
    """Whether chunks, of which none is empty, lie within a tensor of this shape, and no two of them
    overlap.
    """
    for offsets, sizes in chunks:
        if not len(offsets) == len(sizes) == len(shape):
            return False
        if any(
            start < 0 or start + size > end
            for start, size, end in zip(offsets, sizes, shape, strict=True)
        ):
            return False
    return _are_apart(chunks)


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
