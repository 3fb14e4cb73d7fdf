"""The samplers and data sets of a loader, and those within them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch.utils.data import DataLoader, IterableDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def has_order(loader: object) -> TypeGuard[DataLoader[Any]]:
    """True for a DataLoader that a sampler gives the order of its samples."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def sampler_chain(sampler: object) -> Iterator[Any]:
    """A sampler, and those that it wraps, as a batch sampler does."""
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "sampler", None)


def data_sets_in(
    dataset: object, is_end: Callable[[object], bool] = lambda part: False
) -> Iterator[Any]:
    """A data set, and those that it holds in `dataset` or `datasets`, each once; nothing within one
    that `is_end`.
    """
    parts, seen = [dataset], {id(None)}
    while parts:
        part = parts.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        if is_end(part):
            continue
        attributes = getattr(part, "__dict__", {})  # no property is asked
        parts += [attributes.get("dataset"), attributes.get("_dataset")]
        several = attributes.get("datasets")
        if isinstance(several, Mapping):
            several = [*several.values()]
        if isinstance(several, list | tuple):
            parts += several


def find_generator(order: object) -> torch.Generator | None:
    """The generator that the user gave to a sampler, or to one that it wraps."""
    for part in sampler_chain(order):
        generator = getattr(part, "generator", None)
        if isinstance(generator, torch.Generator):
            return generator
    return None
