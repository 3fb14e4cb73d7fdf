"""Copies of modules, data modules and loaders that share the data itself."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset

from core.contract import ConfigurationError
from core.trainer.stage_data.collection import is_collection, leaves_of
from core.trainer.stage_data.combined import CombinedLoader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def copy_owner(owner: object) -> Any:
    """A copy of a module or data module, with the same data sets.

    Raises:
        ConfigurationError: it can't be copied.
    """
    return _copied(owner, f"{type(owner).__name__}", _data_in(vars(owner).values()))


def copy_loaders(loaders: object, argument: str) -> object:
    """Copies of loaders, each with a sampler and generators of its own, over the same data sets.

    Raises:
        ConfigurationError: one that can be read once only, or can't be copied.
    """
    if isinstance(loaders, CombinedLoader) or is_collection(loaders):
        found = loaders.leaves if isinstance(loaders, CombinedLoader) else leaves_of(loaders)
        leaves = [leaf for _, leaf in found]
    else:
        leaves = [loaders]
    for leaf in leaves:
        if hasattr(leaf, "__next__"):
            raise ConfigurationError(
                f"{argument} has {type(leaf).__name__}, an iterator that a search would use up. Pass what can be "
                "iterated over several times, such as a DataLoader."
            )
    return _copied(loaders, argument, _data_in(leaves, shares_others=True))


def _data_in(values: Iterable[object], *, shares_others: bool = False) -> Iterator[object]:
    """The objects that a copy shares: data sets, and running workers of loaders."""
    for value in values:
        if isinstance(value, DataLoader):
            yield value.dataset
            yield getattr(value, "_iterator", None)  # that of persistent workers
        elif isinstance(value, Dataset) or shares_others:
            yield value


def _copied(value: object, name: str, shared: Iterable[object]) -> object:
    try:
        return copy.deepcopy(value, {id(one): one for one in shared if one is not None})
    except Exception as error:
        raise ConfigurationError(
            f"{name} can't be copied, and a search for settings works on a copy so as to leave nothing behind "
            f"({type(error).__name__}: {error}). Give it a __deepcopy__ or a __getstate__ that leaves out what can't "
            "be copied."
        ) from error
