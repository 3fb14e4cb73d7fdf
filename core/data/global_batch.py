"""A number of samples that makes one optimizer step, split among any number of ranks, in batches
that fit.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from core.contract import ConfigurationError
from core.data.sampler import sampler_chain

if TYPE_CHECKING:
    from collections.abc import Iterable


class GlobalBatch(NamedTuple):
    """A division of `num_samples`, which is `num_shards * batch_size * num_accumulated`.

    Attributes:
        num_samples: of all ranks in one optimizer step.
        num_shards: shards of the data.
        batch_size: samples of one shard in one batch.
        num_accumulated: batches of an accumulation window.
        cuts: True if batches are cut out of the order here; False for a loader whose batches come
            as they are.
    """

    num_samples: int
    num_shards: int
    batch_size: int
    num_accumulated: int
    cuts: bool = True


def divide_global_batch(
    num_samples: int, loader: object, *, num_shards: int, shards: bool = True, warns: bool = False
) -> GlobalBatch:
    """The division for a user's loader.

    Where core cuts the batches, the loader's `batch_size` is the most that a rank takes at once: a
    batch is the largest divisor of the rank's shard that isn't above it. Batches that come as they
    are keep their size.

    Args:
        num_samples: in one optimizer step, over all ranks.
        loader: as the user made it.
        num_shards: shards of the data.
        shards: whether core shards the loader.
        warns: whether to warn of batches that are much smaller than they could be.

    Raises:
        ConfigurationError: it can't be divided; names the nearest numbers that can, of samples and
            of ranks.
    """
    check_global_batch(num_samples, num_shards)
    size = getattr(loader, "batch_size", None)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigurationError(
            f"global_batch_size={num_samples} needs a DataLoader with a batch_size, which is the "
            f"most samples that a rank takes at once, and got {_describe(loader)}. Pass "
            "DataLoader(dataset, batch_size=...), or leave global_batch_size out and count the "
            "batches of a step by accumulate_grad_batches."
        )
    if not (shards and _can_be_cut(loader)):
        return _take_whole(num_samples, num_shards, size)
    shard = num_samples // num_shards
    batch_size = max(number for number in _divisors(shard) if number <= size)
    if warns and 2 * batch_size < min(size, shard):
        _warn_of_small(num_samples, num_shards, batch_size, size)
    return GlobalBatch(num_samples, num_shards, batch_size, shard // batch_size)


def _warn_of_small(num_samples: int, num_shards: int, batch_size: int, most: int) -> None:
    unit = num_shards * most
    near = " or ".join(
        str(size) for size in (num_samples // unit * unit, (num_samples // unit + 1) * unit) if size
    )
    warnings.warn(
        f"global_batch_size={num_samples} on {num_shards} ranks leaves {num_samples // num_shards} "
        f"samples to each, which makes batches of {batch_size}: no larger divisor is up to the "
        f"loader's batch_size={most}. Of full batches are made: {near}.",
        stacklevel=2,
    )


def check_global_batch(num_samples: int, num_shards: int) -> None:
    """Refuse a number of samples that ranks can't share alike.

    Raises:
        ConfigurationError: with the nearest numbers, of samples and of ranks, that fit.
    """
    if num_samples % num_shards:
        raise ConfigurationError(
            f"global_batch_size={num_samples} can't be divided evenly among {num_shards} ranks. "
            f"{_nearest(num_samples, num_shards, num_shards, _divisors(num_samples))}"
        )


def _take_whole(num_samples: int, num_shards: int, size: int) -> GlobalBatch:
    unit = num_shards * size
    if num_samples % unit:
        fitting = _divisors(num_samples // size) if num_samples % size == 0 else []
        raise ConfigurationError(
            f"global_batch_size={num_samples}: the loader's batches of {size} come as they are, so "
            f"that {num_shards} ranks take {unit} samples at once, which doesn't divide "
            f"{num_samples}. {_nearest(num_samples, unit, num_shards, fitting)}"
        )
    return GlobalBatch(num_samples, num_shards, size, num_samples // unit, cuts=False)


def _can_be_cut(loader: object) -> bool:
    """True for torch's own batches of an order that the user hasn't sharded."""
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and type(loader.batch_sampler) is BatchSampler
        and not any(hasattr(part, "num_replicas") for part in sampler_chain(loader.batch_sampler))
    )


def _nearest(num_samples: int, unit: int, num_shards: int, fitting: Iterable[int]) -> str:
    below, above = num_samples // unit * unit, (num_samples // unit + 1) * unit
    sizes = " or ".join(f"global_batch_size={size}" for size in (below, above) if size)
    fewer = [number for number in fitting if number < num_shards]
    more = [number for number in fitting if number > num_shards]
    ranks = " or ".join(map(str, [*fewer[-1:], *more[:1]]))
    nearest = f"The nearest that can be: {sizes}"
    if not ranks:
        return f"{nearest}."
    return f"{nearest}; {num_samples} fits {ranks} rank{'' if ranks == '1' else 's'}."


def _divisors(number: int) -> list[int]:
    low = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return sorted({*low, *(number // each for each in low)})


def _describe(loader: object) -> str:
    name = type(loader).__name__
    return (
        f"a {name} with batch_size={loader.batch_size!r}"
        if isinstance(loader, DataLoader)
        else f"a {name}"
    )
