"""A user's DataLoader with the distributed sampler in it: one rank's shard, in the user's own
order.
"""

from __future__ import annotations

import copy
import warnings
import zlib
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
)

from core.contract import ConfigurationError
from core.data.nested_parts import data_sets_in, find_generator, has_order, sampler_chain
from core.data.sampler import SHUFFLING, ShardedSampler
from core.data.seeds import mix_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract import Strategy
    from core.contract.step import Stage
    from core.data.global_batch import GlobalBatch


def shard_loader(
    loader: object,
    *,
    rank: int,
    size: int,
    seed: int,
    stage: Stage = "fit",
    broadcast: Callable[[Any], Any] | None = None,
    global_batch: GlobalBatch | None = None,
    joins: bool | None = None,
    rebalances: bool = True,
) -> Any:
    """A loader of this rank's shard; the user's own isn't changed.

    All ranks, with the same `size`, `seed` and `stage`. On one device too, so that its order is the
    same.

    Args:
        loader: a DataLoader, or a subclass. One that can't be sharded comes back as it is, with a
            warning if there is more than one rank: another kind of iterable, or a loader of an
            IterableDataset.
        rank: the data-parallel rank that gets the shard.
        size: number of shards.
        seed: of the shuffling, the same on all ranks.
        stage: of the loop that reads it.
        broadcast: hands rank 0's object to all ranks. With it, a generator of the user starts from
            rank 0's state.
        global_batch: cut the order by this division, in place of the loader's own batches.
        joins: in a last step without a sample for every rank, the others repeat one, and so make
            the same number of steps: False to end a step earlier. None: in `"fit"`.
        rebalances: before it comes to that, move samples there from the step before. False for who
            weighs batches by `ShardedSampler.uneven`.

    Returns:
        A copy with the same class, data set, workers and options, and a `ShardedSampler`
        (`sampler_of` finds it).
    """
    if not has_order(loader):
        if size > 1 and rank == 0:
            what = type(loader).__name__
            if isinstance(loader, DataLoader):
                what = f"a DataLoader over {type(loader.dataset).__name__}"
            warnings.warn(
                f"{what} can't be sharded from outside: each of the {size} ranks reads all of it. "
                "Let it yield the shard of its own rank, which torch.distributed.get_rank() tells, "
                "and say so with use_distributed_sampler=False.",
                stacklevel=4,
            )
        return loader
    if sampler_of(loader) is not None:
        return loader
    for part in sampler_chain(_order_of(loader)):
        # torch's DistributedSampler, or one like it: the user has sharded this loader
        if hasattr(part, "num_replicas"):
            share = getattr(part, "rank", rank), part.num_replicas
            if share != (rank, size):
                warnings.warn(
                    f"{type(part).__name__} gives share {share[0]} of {share[1]} to a rank that "
                    f"has share {rank} of {size} of the data: some samples are read twice, or by "
                    "nobody. Leave the sampler out: core shards the loader; or make it from "
                    "trainer.strategy.data_parallel_rank and data_parallel_size.",
                    stacklevel=4,
                )
            rank, size = 0, 1
            break
    if joins is None:
        joins = stage == "fit"
    options: dict[str, Any] = {}
    if global_batch is not None and global_batch.cuts:
        options["batch_size"] = global_batch.batch_size
        options["num_accumulated"] = global_batch.num_accumulated
    sampler = _make_sampler(
        loader, rank=rank, size=size, seed=seed, repeats=joins, rebalances=rebalances, **options
    )
    generator = find_generator(sampler.order)
    if generator is not None and size > 1 and broadcast is not None:
        generator.set_state(broadcast(generator.get_state()).cpu())
    return _with_sampler(loader, sampler)


def sampler_of(loader: object) -> ShardedSampler | None:
    """The `ShardedSampler` that `shard_loader` has put in, or None."""
    for name in ("batch_sampler", "sampler"):
        sampler = getattr(loader, name, None)
        if isinstance(sampler, ShardedSampler):
            return sampler
    return None


def _order_of(loader: DataLoader[Any]) -> Any:
    """The sampler of batches, or of samples where the loader doesn't collate."""
    if loader.batch_sampler is None:
        return loader.sampler
    return loader.batch_sampler


def shuffles(loader: object) -> bool:
    """True if a DataLoader draws its samples in random order, by a sampler of torch."""
    return has_order(loader) and any(
        isinstance(part, SHUFFLING) for part in sampler_chain(_order_of(loader))
    )


def without_shuffling(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A copy of a loader that `shuffles`, whose samples come in the order of the data set."""
    order = SequentialSampler(loader.dataset)  # type: ignore[arg-type]  # a map-style data set has a length
    clone = copy.copy(loader)
    attributes = vars(clone)
    attributes["_iterator"], attributes["sampler"] = None, order
    batches: Any = loader.batch_sampler
    if batches is not None:
        size = getattr(batches, "batch_size", None) or 1
        drop_last = bool(getattr(batches, "drop_last", False))
        attributes["batch_sampler"] = BatchSampler(order, size, drop_last)
    return clone


def _make_sampler(loader: DataLoader[Any], **options: Any) -> ShardedSampler:
    batches = loader.batch_sampler
    # The loader seeds workers from the generator that draws the order: then the sampler draws both,
    # in the loader's order.
    if loader.generator is find_generator(_order_of(loader)):
        options["loader_generator"] = loader.generator
    if batches is None:
        return ShardedSampler(loader.sampler, batch_size=1, yields_batches=False, **options)
    if type(batches) is BatchSampler:
        given = {"batch_size": batches.batch_size, "drop_last": batches.drop_last}
        return ShardedSampler(batches.sampler, **(given | options))
    return ShardedSampler(
        batches, batch_size=None, drop_last=getattr(batches, "drop_last", False), **options
    )


def _with_sampler(loader: DataLoader[Any], sampler: ShardedSampler) -> DataLoader[Any]:
    """A copy without a call of `__init__`, which a subclass may have changed and torch's guard
    makes final.
    """
    clone = copy.copy(loader)
    attributes = vars(clone)
    attributes["_iterator"] = None  # persistent workers belong to the user's loader
    if sampler.num_accumulated is not None:
        attributes["batch_size"] = sampler.batch_size  # for those who ask, as engines do
    if loader.batch_sampler is not None:
        attributes["batch_sampler"] = sampler
    else:
        attributes["sampler"] = sampler
    shared = loader.generator is not None and loader.generator is find_generator(sampler.order)
    if shared or (loader.generator is None and loader.num_workers > 0 and sampler.size > 1):
        # Else the loader would draw from the generator of the order, or workers of all ranks would
        # augment alike.
        attributes["generator"] = sampler.worker_generator
    return clone


def _chosen_samples(loader: Any) -> int:
    """A digest of the lists by which subsets and samplers choose samples."""
    samplers = (getattr(loader, name, None) for name in ("batch_sampler", "sampler"))
    parts = chain(data_sets_in(getattr(loader, "dataset", None)), *map(sampler_chain, samplers))
    chosen: list[Any] = []
    for part in parts:
        if isinstance(part, Subset | SubsetRandomSampler):
            indices: Any = part.indices
            if hasattr(indices, "tolist"):
                indices = indices.tolist()
            chosen.append(list(indices))
    return zlib.crc32(repr(chosen).encode())


class LoaderSharder:
    """Makes this rank's shards of the user's loaders, in orders that follow from the run's seed.

    That is rank 0's `torch.initial_seed()`. The first loader of each stage is drawn from it, and
    each further one has a seed of its own, so that loaders of one length are shuffled apart.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._counts: Counter[Stage] = Counter()

    def shard(
        self, loader: object, stage: Stage, global_batch: GlobalBatch | None = None, **options: bool
    ) -> Any:
        """All ranks, for the same loaders in the same order. Shard the next loader, as
        `shard_loader` does.
        """
        strategy, number = self._strategy, self._counts[stage]
        self._counts[stage] += 1
        chosen = _chosen_samples(loader)
        seed, other = strategy.broadcast((torch.initial_seed(), chosen))
        if chosen != other:
            raise ConfigurationError(
                f"The {stage} loader's Subset or SubsetRandomSampler has other samples on rank "
                f"{strategy.global_rank} than on rank 0: some would be trained on one rank and "
                "validate on the other. Each rank has run the program and drawn its own. Split in "
                "DataModule.setup, where ranks draw the same, or with a seed, as in "
                "random_split(data, sizes, torch.Generator().manual_seed(0))."
            )
        if number:
            seed = mix_seed(seed, number)
        return shard_loader(
            loader,
            rank=strategy.data_parallel_rank,
            size=strategy.data_parallel_size,
            seed=seed,
            stage=stage,
            broadcast=strategy.broadcast,
            global_batch=global_batch,
            **options,
        )
