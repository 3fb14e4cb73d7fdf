"""The number of the epoch, on its way to what draws anew in each: samplers, data sets, and their
copies in workers.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import get_worker_info

from core.data.nested_parts import data_sets_in, sampler_chain
from core.data.sampler_in_loader import sampler_of

if TYPE_CHECKING:
    from collections.abc import Callable

_READS = ("__iter__", "__getitem__", "__getitems__")


def set_epoch(loader: Any, epoch: int) -> None:
    """Set the epoch of what draws anew each epoch: the loader's samplers and data sets, or it.
    Before it is opened.

    Data sets are looked for within others too, in `dataset` and `datasets`. Workers that persist
    learn of it as well.
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
    if data_sets and getattr(loader, "persistent_workers", False):
        if not isinstance(loader.worker_init_fn, _EpochInWorkers):
            loader.worker_init_fn = _EpochInWorkers(loader.worker_init_fn)
            loader._iterator = None  # workers that were there before can't learn of it
        loader.worker_init_fn.set_epoch(epoch)


def _with_epochs(dataset: object) -> list[Any]:
    """The outermost data sets with `set_epoch`: `dataset` itself, or those within."""
    return list(filter(_has_epochs, data_sets_in(dataset, _has_epochs)))


def _has_epochs(part: object) -> bool:
    return callable(getattr(part, "set_epoch", None))


class _EpochInWorkers:
    """A `worker_init_fn` by which the copy of the data set in a worker that persists learns of each
    epoch.

    Torch has no hook where such a worker begins another epoch. So the number is in shared memory,
    and the worker looks whenever it reads from the data set.
    """

    def __init__(self, own: Callable[[int], None] | None) -> None:
        self._own, self._own_epoch = own, 0
        self._shared_epoch = torch.zeros((), dtype=torch.int64)

    def set_epoch(self, epoch: int) -> None:
        """Main process. Set the epoch of all workers; those that are yet to start have a data set
        of that epoch.
        """
        self._own_epoch = epoch
        self._shared_epoch.share_memory_().fill_(epoch)

    def __call__(self, worker_id: int) -> None:
        """The worker, when it starts."""
        if self._own is not None:
            self._own(worker_id)
        dataset: Any = get_worker_info().dataset  # type: ignore[union-attr]  # there is one in a worker
        kind = type(dataset)
        reads = {
            name: self._after_epoch(getattr(kind, name)) for name in _READS if hasattr(kind, name)
        }
        dataset.__class__ = type(kind.__name__, (kind,), {"__slots__": (), **reads})

    def _after_epoch(self, read: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(read)
        def update_and_read(dataset: Any, *arguments: Any) -> Any:
            epoch = int(self._shared_epoch)
            if self._own_epoch != epoch:
                self._own_epoch = epoch
                for part in _with_epochs(dataset):
                    part.set_epoch(epoch)
            return read(dataset, *arguments)

        return update_and_read
