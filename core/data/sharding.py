"""Sharding: cuts the global order of samples into steps, and each step into one shard for each
rank.

A step takes as many whole batches as there are ranks: with `batch_size` b on n ranks it is a slice
of n * b samples of the global order, and rank r gets the r-th b of them. A user's own batches are
kept whole.

The last step may be short. Its samples are split evenly, so that some ranks have one less than
others, or none if there are fewer samples than ranks. Where batches can't be weighted,
`rebalance_last` moves some there from the step before.
"""

from __future__ import annotations

from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeAlias

    Step: TypeAlias = list[list[Any]]
    """The samples of one step: for each rank its own."""


def shard_samples(
    order: Iterable[object],
    batch_size: int,
    *,
    size: int,
    position: int = 0,
    drop_last: bool = False,
    num_accumulated: int = 1,
) -> Iterator[Step]:
    """Steps of a global order of samples, from the `position`-th sample on, cut by accumulation
    windows.

    A window is as many samples of the order on any number of ranks, if
    `batch_size * num_accumulated * size` is the same. The last one may be short: in as few steps as
    possible, equal to within one sample; a rank may have none.

    Args:
        order: samples, one after the other.
        batch_size: the most samples of a rank in a step.
        size: number of ranks.
        position: samples to leave out.
        drop_last: leave out a short last window.
        num_accumulated: steps of a whole window.
    """
    at_once = batch_size * size
    samples = islice(order, position, None)
    for window in _cut(samples, at_once * num_accumulated, drop_last):
        num_steps = -(-len(window) // at_once)  # rounded up
        for taken in _split(window, num_steps):
            yield _split(taken, size)


def shard_batches(
    order: Iterable[Iterable[object]], *, size: int, position: int = 0, drop_last: bool = False
) -> Iterator[Step]:
    """Steps of a global order of whole batches, from the `position`-th sample on.

    Args:
        order: batches of samples, one after the other.
        size: number of ranks.
        position: samples, not batches, to leave out.
        drop_last: leave out a last step that doesn't have a batch for every rank.
    """
    for taken in _cut(_skip(order, position), size, drop_last):
        if len(taken) == size:
            yield taken
        else:
            yield _split(list(chain.from_iterable(taken)), size)


def _cut(items: Iterator[Any], number: int, drop_last: bool) -> Iterator[list[Any]]:
    """Lists of so many items; the last one may be short."""
    taken = list(islice(items, number))
    while len(taken) == number or (taken and not drop_last):
        yield taken
        taken = list(islice(items, number))


def _skip(batches: Iterable[Iterable[object]], position: int) -> Iterator[list[object]]:
    for batch in batches:
        samples = list(batch)  # a sampler may fill the same list again
        if len(samples) <= position:
            position -= len(samples)
        else:
            yield samples[position:]
            position = 0


def _split(samples: list[object], size: int) -> Step:
    """Contiguous shards, as even as possible; the first ranks get one sample more."""
    if size == 1:
        return [samples]
    least, extra = divmod(len(samples), size)
    starts = [rank * least + min(rank, extra) for rank in range(size + 1)]
    return [samples[start:stop] for start, stop in pairwise(starts)]


def rebalance_last(steps: Iterator[Step], size: int) -> Iterator[Step]:
    """The same steps; if a rank has no sample in the last one, that gets some of the step before.
    Reads one ahead.
    """
    held: list[Step] = []
    for step in steps:
        held.append(step)
        if len(held) > 1:
            # The last rank has the least, so if it has a sample, all have.
            if not step[-1]:
                samples = list(chain.from_iterable(held[0] + step))
                if len(samples) >= 2 * size:
                    # One sample for each rank in the last step, and the rest before it.
                    held = [_split(samples[:-size], size), _split(samples[-size:], size)]
            yield held.pop(0)
    yield from held
