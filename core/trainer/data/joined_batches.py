"""Batches of ranks that don't know how many they have: each rank goes on until all have run out."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError
from core.data import MicroBatch, size_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.contract import Collectives, Strategy

    Sizes = list[int | None]
    """Numbers of samples of one rank's batches in a window; None where that is unknown."""


def join_batches(
    batches: Iterator[Any],
    strategy: Strategy,
    collectives: Collectives,
    uneven: dict[int, MicroBatch],
    *,
    num_accumulated: int,
    num_batches: int | float,
    has_sizes: bool = True,
) -> Iterator[Any]:
    """All ranks. The same batches, and then the last one again, with weight 0, as long as another rank has some.

    The ranks agree before the first step of each accumulation window, over a connection between processes: no device
    waits. For that a window is read as a whole; between two windows no batch is held.

    Args:
        batches: of this rank.
        strategy: whose shards of the data these are.
        collectives: apart from those of the training.
        uneven: gets those that don't weigh 1, as `ShardedSampler.uneven` has them.
        num_accumulated: batches of a window.
        num_batches: that will be taken at most.
        has_sizes: False for batches of several loaders, which weigh alike.

    Raises:
        ConfigurationError: a rank has no batch at all.
    """
    number, last, share = 0, None, strategy.data_parallel_rank
    while number < num_batches:
        wanted = int(min(num_accumulated, num_batches - number))
        own = list(islice(batches, wanted))
        sizes = _exchange(strategy, collectives, [size_of(batch) if has_sizes else None for batch in own])
        num_steps = max(map(len, sizes))
        if number == 0 and num_steps:
            _refuse_empty(sizes)
        last = own[-1] if own else last
        for place, micro_batch in enumerate(_weigh(sizes, share, num_steps, num_accumulated)):
            if (micro_batch.weight, micro_batch.weight_in_step) != (1, 1):
                uneven[number] = micro_batch
            number += 1
            yield own[place] if place < len(own) else last
        if num_steps < wanted:  # all have run out
            return


def _exchange(strategy: Strategy, collectives: Collectives, own: Sizes) -> list[Sizes]:
    """All ranks. The sizes of each shard's batches, in their order."""
    gathered = collectives.gather_objects((strategy.data_parallel_rank, own))
    shards: dict[int, Sizes] = dict(collectives.broadcast_object(gathered))
    return [shards[share] for share in sorted(shards)]


def _weigh(sizes: list[Sizes], share: int, num_steps: int, num_accumulated: int) -> list[MicroBatch]:
    """The weights of one shard's batches in a window."""
    if any(size is None for part in sizes for size in part):
        sizes = [[1] * len(part) for part in sizes]  # each batch weighs alike
    counts = [[size or 0 for size in part] + [0] * (num_steps - len(part)) for part in sizes]
    num_all = sum(map(sum, counts)) or 1
    return [
        MicroBatch(
            counts[share][place] * len(counts) * num_accumulated / num_all,
            counts[share][place] * len(counts) / (sum(part[place] for part in counts) or 1),
            place == num_steps - 1,
        )
        for place in range(num_steps)
    ]


def _refuse_empty(sizes: list[Sizes]) -> None:
    if empty := [str(share) for share, part in enumerate(sizes) if not part]:
        raise ConfigurationError(
            f"The training loader gave no batch in this epoch on {len(empty)} of {len(sizes)} ranks (shards of the "
            f"data: {', '.join(empty)}), so that there is none with which they could join the others' steps. Give "
            "each rank at least one batch; within an epoch that goes on from a checkpoint, pass one of an epoch's end."
        )
