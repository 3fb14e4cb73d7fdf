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
) -> Iterator[Step]:
    """Steps of a global order of samples, from the `position`-th sample on.

    Args:
        order: samples, one after the other.
        batch_size: samples a rank and step.
        size: number of ranks.
        position: samples to leave out.
        drop_last: leave out a short last step.
    """
    samples = islice(order, position, None)
    while taken := list(islice(samples, batch_size * size)):
        if drop_last and len(taken) < batch_size * size:
            return
        yield [taken] if size == 1 else _split(taken, size)


def shard_windows(
    order: Iterable[object],
    batch_size: int,
    *,
    num_accumulated: int,
    size: int,
    position: int = 0,
    drop_last: bool = False,
) -> Iterator[list[Step]]:
    """Accumulation windows of a global order of samples, each a list of steps, from the
    `position`-th sample on.

    A window is as many samples of the order on any number of ranks, if
    `batch_size * num_accumulated * size` is the same. The last one may be short: in as few steps as
    possible, equal to within one sample; a rank may have none.

    Args:
        order: samples, one after the other.
        batch_size: the most samples of a rank in a step.
        num_accumulated: steps of a whole window.
        size: number of ranks.
        position: samples to leave out.
        drop_last: leave out a short last window.
    """
    samples = islice(order, position, None)
    whole = batch_size * num_accumulated * size
    while taken := list(islice(samples, whole)):
        if drop_last and len(taken) < whole:
            return
        num_steps = -(-len(taken) // (batch_size * size))  # rounded up
        yield [_split(part, size) for part in _split(taken, num_steps)]


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
    batches = _skip(order, position)
    while taken := list(islice(batches, size)):
        if len(taken) == size:
            yield taken
        elif not drop_last:
            yield _split(list(chain.from_iterable(taken)), size)


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
    if (held := next(steps, None)) is None:
        return
    for step in steps:
        held, step = _rebalance_last_step(held, step, size)
        yield held
        held = step
    yield held


def _rebalance_last_step(before: Step, step: Step, size: int) -> tuple[Step, Step]:
    """Move samples from the step before if a rank has none in the last one, and both have enough
    together.
    """
    # The last rank has the least, so if it has a sample, all have.
    if step[-1]:
        return before, step
    samples = list(chain.from_iterable(before + step))
    if len(samples) < 2 * size:
        return before, step
    # One sample for each rank in the last step, and the rest before it.
    return _split(samples[:-size], size), _split(samples[-size:], size)
