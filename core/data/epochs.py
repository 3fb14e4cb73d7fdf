"""The number of the epoch, on its way to what draws anew in each: samplers and data sets."""

from __future__ import annotations

from typing import Any

from core.data.nested_parts import data_sets_in, sampler_chain
from core.data.sampler_in_loader import sampler_of


def set_epoch(loader: Any, epoch: int) -> None:
    """Set the epoch of what draws anew each epoch: the loader's samplers and data sets, or it.
    Before it is opened.

    Data sets are looked for within others too, in `dataset` and `datasets`. With one of them,
    workers that persist are made anew for another epoch.
    """
    samplers: list[Any] = [sampler_of(loader)]  # passes it on to the user's own, which it wraps
    if samplers == [None]:
        samplers = [
            *sampler_chain(getattr(loader, "batch_sampler", None)),
            *sampler_chain(getattr(loader, "sampler", None)),
        ]
    data_sets = _with_epochs(getattr(loader, "dataset", None))
    parts = {id(part): part for part in (*samplers, *data_sets, loader)}
    for part in filter(_has_epochs, parts.values()):
        part.set_epoch(epoch)
    # Workers that persist have a copy of the data set.
    if data_sets and getattr(loader, "persistent_workers", False):
        if getattr(loader, "epoch_of_workers", None) != epoch:
            loader._iterator = None
        loader.epoch_of_workers = epoch


def _with_epochs(dataset: object) -> list[Any]:
    """The outermost data sets with `set_epoch`: `dataset` itself, or those within."""
    return list(filter(_has_epochs, data_sets_in(dataset, _has_epochs)))


def _has_epochs(part: object) -> bool:
    return callable(getattr(part, "set_epoch", None))
