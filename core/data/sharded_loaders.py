"""The sharding of a run's loaders, each with a seed of its own."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from core.data.loader import shard_loader
from core.data.randomness import mix_seed

if TYPE_CHECKING:
    from core.contract import Strategy
    from core.contract.step import Stage
    from core.data.global_batch import GlobalBatch


class LoaderSharder:
    """Makes this rank's shards of the user's loaders, in orders that follow from the run's seed.

    That is rank 0's `torch.initial_seed()`. The first loader of each stage is drawn from it, and each further one has a
    seed of its own, so that loaders of one length are shuffled apart.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._counts: Counter[Stage] = Counter()

    def shard(self, loader: Any, stage: Stage, global_batch: GlobalBatch | None = None, **options: bool) -> Any:
        """All ranks, for the same loaders in the same order. Shard the next loader, as `shard_loader` does."""
        strategy, number = self._strategy, self._counts[stage]
        self._counts[stage] += 1
        seed = strategy.broadcast(torch.initial_seed())
        return shard_loader(
            loader,
            rank=strategy.data_parallel_rank,
            size=strategy.data_parallel_size,
            seed=mix_seed(seed, number) if number else seed,
            stage=stage,
            broadcast=strategy.broadcast,
            global_batch=global_batch,
            **options,
        )
