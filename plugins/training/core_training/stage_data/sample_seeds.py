"""Random augmentation that doesn't depend on the worker: each sample is loaded with generators of
its own.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset, get_worker_info

from core.contract import ConfigurationError
from core.data import DrawingRng, sampler_of, seed_generators

if TYPE_CHECKING:
    from core.data import SeededIndex


def seed_samples(loader: object) -> Any:
    """A copy of a sharded loader in which Python's, NumPy's and torch's generators are seeded for
    every single sample.

    The seed follows from the run's seed, the epoch and the sample's number in the global order. So
    an augmentation comes out the same with any number of workers and ranks, and after a resume.
    Samples are loaded one by one, also where the data set could load several at once.

    Raises:
        ConfigurationError: the loader has no global order.
    """
    sampler = sampler_of(loader)
    if not isinstance(loader, DataLoader) or sampler is None:
        raise ConfigurationError(
            "seed_samples=True needs a DataLoader over a map-style data set, with "
            f"use_distributed_sampler=True, and got {type(loader).__name__}. Seed by the sample's "
            "own number in your data set, or leave the option out."
        )
    sampler.seeds_samples = True
    clone = copy.copy(loader)
    # By `vars`: a DataLoader refuses to have its data set replaced.
    vars(clone)["dataset"] = SeededDataset(loader.dataset)
    return clone


class SeededDataset(Dataset[Any]):
    """The user's data set, which gets `SeededIndex`. Other attributes are the data set's own."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, key: SeededIndex) -> Any:
        if get_worker_info() is not None:
            seed_generators(key.seed)  # the worker is there for nothing else
            return self._dataset[key.index]
        with DrawingRng(key.seed):
            return self._dataset[key.index]

    def __getattr__(self, name: str) -> Any:
        # `__getitems__` would load several samples with one seed; and unpickling asks before there
        # is a data set.
        if name.startswith("__") or name == "_dataset":
            raise AttributeError(name)
        return getattr(self._dataset, name)
