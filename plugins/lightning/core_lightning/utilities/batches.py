"""Questions about loaders and batches, and numbers for processes that load."""

from __future__ import annotations

import os
from typing import Any

from torch.utils.data import IterableDataset

from core import ModuleError
from core.data import size_of


def suggested_max_num_workers(local_world_size: int) -> int:
    """A number of loader workers for each process of this machine: its cores, shared, and one
    less.
    """
    if local_world_size < 1:
        raise ValueError(
            f"suggested_max_num_workers({local_world_size}): expected at least 1 process."
        )
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return max(1, cores // local_world_size - 1)


def extract_batch_size(batch: Any) -> int:
    """Number of samples in a batch."""
    size = size_of(batch)
    if size is None:
        raise ModuleError(
            f"The number of samples in a {type(batch).__name__} is unknown. Log with self.log(..., "
            "batch_size=...)."
        )
    return size


def has_iterable_dataset(dataloader: object) -> bool:
    """True if a loader's data set is an IterableDataset."""
    return isinstance(getattr(dataloader, "dataset", None), IterableDataset)


def sized_len(dataloader: Any) -> int | None:
    """The length; None if there is none."""
    try:
        return len(dataloader)
    except (TypeError, NotImplementedError):
        return None


def has_len(dataloader: object) -> bool:
    """True if there is a length."""
    return sized_len(dataloader) is not None
