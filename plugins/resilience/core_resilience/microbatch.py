"""The size of a microbatch that fits into memory: smaller after each step that didn't fit."""

from __future__ import annotations

import gc
import os
from typing import Any

from core.contract import ConfigurationError, UnsupportedError

VARIABLE = "CORE_NUM_MICROBATCHES"
"""The parts into which batches are cut at least, as `core go-on` sets it."""
_asked: list[int] = []


def microbatch_size(batch_size: int) -> int:
    """The batch size of a loader: `batch_size`, or its largest part that has fitted under
    `core go-on`.

    Where a step runs out of memory on any rank, all ranks leave it, and the script runs again in
    the same processes with the next smaller part. The update stays that of the whole batch where
    its samples are counted by `global_batch_size`, of the Trainer or of `Fabric.setup_dataloaders`,
    which accumulates the gradients of the parts.

    Args:
        batch_size: samples of a batch of one rank.

    Raises:
        ConfigurationError: a single sample doesn't fit.
    """
    least = int(os.environ.get(VARIABLE, "1"))
    parts = next((n for n in range(least, batch_size + 1) if batch_size % n == 0), None)
    if parts is None:
        raise ConfigurationError(
            f"microbatch_size({batch_size}): a step with {batch_size // (least - 1)} sample of "
            "each rank ran out of memory, and there is nothing left to cut. Use more devices with "
            "strategy='fsdp', activation checkpointing, or a smaller model."
        )
    _asked[:] = [parts]
    return batch_size // parts


def next_number(error: BaseException) -> int | None:
    """The parts to try next after an error; None if it isn't about memory, or the script cuts
    nothing.

    Raises:
        UnsupportedError: a model of this process computes statistics of whole batches.
    """
    if not _asked or not _is_out_of_memory(error):
        return None
    if names := sorted(
        {type(each).__name__ for each in gc.get_objects() if _has_batch_statistics(each)}
    ):
        raise UnsupportedError(
            f"A step ran out of memory, and its batch can't be cut: {', '.join(names)} computes "
            "statistics of the whole batch, which those of its parts don't equal. Use a smaller "
            "batch, or another normalization, such as GroupNorm."
        ) from error
    return _asked[0] + 1


def _is_out_of_memory(error: BaseException | None) -> bool:
    import torch

    if error is None:
        return False
    is_of_cpu = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return (
        is_of_cpu
        or isinstance(error, torch.OutOfMemoryError | MemoryError)
        or _is_out_of_memory(error.__cause__)
    )


def _has_batch_statistics(item: Any) -> bool:
    from torch.nn.modules.batchnorm import _BatchNorm

    return issubclass(type(item), _BatchNorm) and item.training
