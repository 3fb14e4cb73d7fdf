"""A number of samples that makes one optimizer step, split among any number of ranks, in batches
that fit.
"""

from __future__ import annotations

from typing import NamedTuple

from torch.utils.data import BatchSampler, DataLoader

from core.contract import ConfigurationError
from core.data.nested_parts import has_order, sampler_chain


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
    num_samples: int, loader: object, *, num_shards: int, shards: bool = True
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

    Raises:
        ConfigurationError: it can't be divided; names the nearest numbers that can.
    """
    check_global_batch(num_samples, num_shards)
    size = getattr(loader, "batch_size", None)
    if type(size) is not int or size < 1:
        given = f"a {type(loader).__name__}"
        if isinstance(loader, DataLoader):
            given += f" with batch_size={size!r}"
        raise ConfigurationError(
            f"global_batch_size={num_samples} needs a DataLoader with a batch_size, which is the "
            f"most samples that a rank takes at once, and got {given}. Pass "
            "DataLoader(dataset, batch_size=...), or leave global_batch_size out and count the "
            "batches of a step by accumulate_grad_batches."
        )
    shard = num_samples // num_shards
    # torch's own batches of an order that the user hasn't sharded
    cuts = shards and has_order(loader) and type(loader.batch_sampler) is BatchSampler
    samplers = sampler_chain(getattr(loader, "batch_sampler", None))
    cuts = cuts and not any(hasattr(part, "num_replicas") for part in samplers)
    if cuts:
        size = next(number for number in range(min(size, shard), 0, -1) if shard % number == 0)
    elif shard % size:
        unit = num_shards * size
        raise ConfigurationError(
            f"global_batch_size={num_samples}: the loader's batches of {size} come as they are, so "
            f"that {num_shards} ranks take {unit} samples at once, which doesn't divide "
            f"{num_samples}. {_nearest(num_samples, unit)}"
        )
    return GlobalBatch(num_samples, num_shards, size, shard // size, cuts)


def check_global_batch(num_samples: int, num_shards: int) -> None:
    """Refuse a number of samples that ranks can't share alike.

    Raises:
        ConfigurationError: with the nearest numbers that can.
    """
    if num_samples % num_shards:
        raise ConfigurationError(
            f"global_batch_size={num_samples} can't be divided evenly among {num_shards} ranks. "
            f"{_nearest(num_samples, num_shards)}"
        )


def _nearest(num_samples: int, unit: int) -> str:
    below = num_samples // unit * unit
    sizes = [f"global_batch_size={size}" for size in (below, below + unit) if size]
    return f"The nearest that can be: {' or '.join(sizes)}."
