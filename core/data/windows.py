"""Accumulation windows: each is known as a whole before its first step, and so is what its batches
weigh.
"""

from __future__ import annotations

import math
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from core.contract import ConfigurationError
from core.data.batch_size import size_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from core.contract import Collectives

    Sizes = list[int | None]
    """Numbers of samples of one rank's batches in a window; None where that is unknown."""


class MicroBatch(NamedTuple):
    """One rank's batch among all batches of its accumulation window.

    Attributes:
        weight: of the batch's loss, beside the division by the number of batches of a whole window:
            the gradients of all ranks and batches are then that of the mean over all samples. 1 for
            a batch of average size, 0 for one that repeats samples of another rank, since this one
            has none.
        ends_window: True for the window's last batch.
    """

    weight: float
    ends_window: bool


def weigh_window(
    uneven: dict[int, MicroBatch],
    first: int,
    sizes: Sequence[Sequence[int]],
    share: int,
    num_accumulated: int,
) -> None:
    """Weigh one shard's batches in a window by their samples. Nothing is noted of a whole window of
    equal batches.

    Args:
        uneven: gets the batches by their numbers.
        first: number of the window's first batch.
        sizes: numbers of samples: for each step, those of all shards' batches.
        share: number of the shard.
        num_accumulated: batches of a whole window.
    """
    counts = [count for step in sizes for count in step]
    if len(sizes) == num_accumulated and min(counts) == max(counts) > 0:
        return
    num_all = sum(counts) or 1
    for place, step in enumerate(sizes, start=1):
        weight = step[share] * len(step) * num_accumulated / num_all
        uneven[first + place - 1] = MicroBatch(weight, place == len(sizes))


def read_windows(
    batches: Iterator[object],
    uneven: dict[int, MicroBatch],
    *,
    num_accumulated: int,
    num_batches: int | float = math.inf,
    has_sizes: bool = True,
    share: int = 0,
    collectives: Collectives | None = None,
    goes_on: bool = False,
    last: object = None,
) -> Iterator[Any]:
    """The same batches, window by window. Between two windows no batch is held.

    With `collectives`, all ranks: they agree before the first step of each window, over a
    connection between processes, so that no device waits. A rank that has run out repeats its last
    batch, with weight 0, until all have.

    Args:
        batches: of this rank.
        uneven: gets those that don't weigh 1, as `ShardedSampler.uneven` has them.
        num_accumulated: batches of a window.
        num_batches: that will be taken at most.
        has_sizes: False for batches of several loaders, which weigh alike.
        share: number of this rank's shard of the data.
        collectives: apart from those of the training. None for ranks that agree on nothing.
        goes_on: these are the rest of an epoch, in which a rank may have run out before.
        last: that this rank has read of what came before, if it has.

    Raises:
        ConfigurationError: a rank has no batch at all.
    """
    number = 0
    while number < num_batches:
        wanted = int(min(num_accumulated, num_batches - number))
        own = list(islice(batches, wanted))
        counts: Sizes = [None] * len(own)
        if has_sizes:
            counts = list(map(size_of, own))
        sizes = {share: counts}  # of each shard's batches, in their order
        if collectives is not None:
            gathered = collectives.gather_objects((share, counts))
            sizes = dict(collectives.broadcast_object(gathered))
        num_steps = max(map(len, sizes.values()))
        if number == 0 and num_steps and not all(sizes.values()):
            if not goes_on or collectives is None:
                empty = [str(part) for part, own in sorted(sizes.items()) if not own]
                raise ConfigurationError(
                    f"The training loader gave no batch in this epoch on {len(empty)} of "
                    f"{len(sizes)} ranks (shards of the data: {', '.join(empty)}), so that there "
                    "is none with which they could join the others' steps. Give each rank at "
                    "least one batch."
                )
            lent = next(filter(None, collectives.gather_objects(own[:1]) or ()), None)
            lent = collectives.broadcast_object(lent)
            if last is None:
                last = lent[0]
        weigh_window(uneven, number, _by_step(sizes), sorted(sizes).index(share), num_accumulated)
        number += num_steps
        own.reverse()
        for _ in range(num_steps):
            if own:
                last = own.pop()
            yield last
        if num_steps < wanted:  # all have run out
            return
    next(batches, None)  # who asks once more asks the loader


def _by_step(sizes: dict[int, Sizes]) -> list[tuple[int, ...]]:
    """For each step the sizes of all shards' batches: 0 where one has none, and 1 for each if one
    is unknown.
    """
    parts = [part for _, part in sorted(sizes.items())]
    if any(None in part for part in parts):
        parts = [[1] * len(part) for part in parts]
    return [tuple(size or 0 for size in step) for step in zip_longest(*parts)]
