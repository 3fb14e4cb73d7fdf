"""The loader of joined batches: as many of the user's batches in one as a call of the program
takes.
"""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from core import ConfigurationError
from core.data import sampler_of, set_epoch
from core_ipu.structure import put_together, take_apart

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
)


def join(poptorch: Any, loader: Any, options: Any, num_joined: int, *, trains: bool) -> Any:
    """A loader whose batches have one size, if it trains; in evaluation the last one may be
    smaller.

    Args:
        poptorch: the library.
        loader: the user's, sharded.
        options: PopTorch's, by which its own loader joins.
        num_joined: the number that they say.
        trains: leave out what doesn't make a whole batch.

    Raises:
        ConfigurationError: a PopTorch loader that was given another sampler.
    """
    if isinstance(loader, poptorch.DataLoader):
        if sampler_of(loader) is not None:
            raise ConfigurationError(
                "A poptorch.DataLoader joins its batches itself, by its own options. Pass a torch "
                "DataLoader, which core-ipu makes into one, or "
                "Trainer(use_distributed_sampler=False)."
            )
        return loader
    if not isinstance(loader, DataLoader) or (
        loader.batch_sampler is None and not _is_iterable(loader)
    ):
        return JoinedBatches(loader, num_joined, trains=trains)
    # gives it the worker_init_fn by which workers that persist learn of epochs
    set_epoch(loader, 0)
    kept = {name: getattr(loader, name) for name in _KEPT}
    if loader.num_workers:
        kept |= {
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
        }
    if _is_iterable(loader):
        made = poptorch.DataLoader(
            options, loader.dataset, batch_size=loader.batch_size, drop_last=trains, **kept
        )
        made.num_joined_batches = num_joined
        return made
    sampler = _whole_batches(loader) if trains else loader.batch_sampler
    made = poptorch.DataLoader(
        options, loader.dataset, batch_sampler=sampler, drop_last=trains, **kept
    )
    if trains:
        _warn_of_rest(loader, num_joined)
    return Counted(made, sampler, num_joined, trains=trains)


def _is_iterable(loader: DataLoader[Any]) -> bool:
    return isinstance(loader.dataset, IterableDataset)


def _whole_batches(loader: DataLoader[Any]) -> Any:
    """The loader's sampler of batches, without a short last one. One of the user's own isn't
    changed.
    """
    sampler: Any = loader.batch_sampler
    if sampler_of(loader) is None:
        sampler = copy.copy(sampler)
    if isinstance(sampler, BatchSampler) or sampler_of(loader) is not None:
        sampler.drop_last = True
    return sampler


def _warn_of_rest(loader: Any, num_joined: int) -> None:
    """Warn of samples that no whole batch takes, unless the user has said that they may be left
    out.
    """
    order: Any = getattr(
        loader.batch_sampler, "order", getattr(loader.batch_sampler, "sampler", None)
    )
    size = getattr(loader.batch_sampler, "batch_size", None)
    if loader.drop_last or not isinstance(size, int) or not hasattr(order, "__len__"):
        return
    if rest := len(order) % (size * num_joined):
        warnings.warn(
            f"A compiled program takes whole batches, here {num_joined} x {size} samples: the last "
            f"{rest} of {len(order)} samples of an epoch are left out of training. DataLoader(..., "
            "drop_last=True) says that this is meant.",
            stacklevel=2,
        )


class Counted:
    """PopTorch's loader with a length: with a batch sampler, its own counts batches before they are
    joined.

    Attributes:
        num_joined_batches: of the user's, in one; the core asks for it.
    """

    def __init__(self, loader: Any, sampler: Any, num_joined: int, *, trains: bool) -> None:
        self.loader = loader
        self.num_joined_batches = num_joined
        self._sampler = sampler
        self._trains = trains

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        whole, rest = divmod(len(self._sampler), self.num_joined_batches)
        return whole + (rest > 0 and not self._trains)


class JoinedBatches:
    """Joins the batches of any other iterable; `num_joined_batches` as in `Counted`."""

    def __init__(self, loader: Any, num_joined: int, *, trains: bool) -> None:
        self.loader = loader
        self.num_joined_batches = num_joined
        self._trains = trains

    def __iter__(self) -> Iterator[Any]:
        held: list[Any] = []
        for batch in self.loader:
            held.append(batch)
            if len(held) == self.num_joined_batches:
                yield _concatenated(held)
                held = []
        if held and self._trains:
            warnings.warn(
                f"A compiled program takes {self.num_joined_batches} batches at once: the last "
                f"{len(held)} of an epoch are left out of training.",
                stacklevel=2,
            )
        elif held:
            yield _concatenated(held)

    def __len__(self) -> int:
        whole, rest = divmod(len(self.loader), self.num_joined_batches)
        return whole + (rest > 0 and not self._trains)


def _concatenated(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    parts = [take_apart(batch) for batch in batches]
    columns = zip(*(tensors for tensors, _ in parts), strict=True)
    return put_together(parts[0][1], [torch.cat(column) for column in columns])
