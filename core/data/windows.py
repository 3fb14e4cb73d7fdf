"""Accumulation windows of batches that come as they are: each is read as a whole, to know what its batches weigh."""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError
from core.data.batch_size import size_of
from core.data.sampler import MicroBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.contract import Collectives

    Sizes = list[int | None]
    """Numbers of samples of one rank's batches in a window; None where that is unknown."""


def read_windows(
    batches: Iterator[Any],
    uneven: dict[int, MicroBatch],
    *,
    num_accumulated: int,
    num_batches: int | float = math.inf,
    has_sizes: bool = True,
    share: int = 0,
    collectives: Collectives | None = None,
    goes_on: bool = False,
    last: Any = None,
) -> Iterator[Any]:
    """The same batches, window by window. Between two windows no batch is held.

    With `collectives`, all ranks: they agree before the first step of each window, over a connection between processes,
    so that no device waits. A rank that has run out repeats its last batch, with weight 0, until all have.

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
        sizes = _exchange([size_of(batch) if has_sizes else None for batch in own], share, collectives)
        num_steps = max(map(len, sizes.values()))
        if number == 0 and num_steps and not all(sizes.values()):
            if not goes_on or collectives is None:
                raise _no_batch(sizes)
            lent = collectives.broadcast_object(next(filter(None, collectives.gather_objects(own[:1]) or ()), None))
            last = lent[0] if last is None else last
        own.reverse()
        for place, micro_batch in enumerate(_weigh(sizes, share, num_steps, num_accumulated), start=1):
            if micro_batch != (1, 1, place == num_accumulated):
                uneven[number] = micro_batch
            number += 1
            last = own.pop() if own else last
            yield last
        if num_steps < wanted:  # all have run out
            return
    next(batches, None)  # who asks once more asks the loader


def _exchange(own: Sizes, share: int, collectives: Collectives | None) -> dict[int, Sizes]:
    """The sizes of each shard's batches, in their order."""
    if collectives is None:
        return {share: own}
    return dict(collectives.broadcast_object(collectives.gather_objects((share, own))))


def _weigh(sizes: dict[int, Sizes], share: int, num_steps: int, num_accumulated: int) -> list[MicroBatch]:
    """The weights of one shard's batches in a window."""
    if any(size is None for part in sizes.values() for size in part):
        sizes = {number: [1] * len(part) for number, part in sizes.items()}  # each batch weighs alike
    counts = {number: [size or 0 for size in part] + [0] * (num_steps - len(part)) for number, part in sizes.items()}
    num_all = sum(map(sum, counts.values())) or 1
    return [
        MicroBatch(
            counts[share][place] * len(counts) * num_accumulated / num_all,
            counts[share][place] * len(counts) / (sum(part[place] for part in counts.values()) or 1),
            place == num_steps - 1,
        )
        for place in range(num_steps)
    ]


def _no_batch(sizes: dict[int, Sizes]) -> ConfigurationError:
    empty = [str(share) for share, part in sorted(sizes.items()) if not part]
    return ConfigurationError(
        f"The training loader gave no batch in this epoch on {len(empty)} of {len(sizes)} ranks (shards of the data: "
        f"{', '.join(empty)}), so that there is none with which they could join the others' steps. Give each rank at "
        "least one batch."
    )
