"""Loaders that aren't sharded, and know which samples each batch is made of."""

from __future__ import annotations

import copy
from collections import deque
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset, Sampler

if TYPE_CHECKING:
    from collections.abc import Iterator


def with_noted_indices(loader: Any) -> Any:
    """A copy of a DataLoader, with a sampler whose `advance()` returns the indices of the next batch.

    Any other loader, whose batches have no indices, is returned as it is.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return loader
    clone = copy.copy(loader)
    attributes = vars(clone)
    attributes["_iterator"] = None  # persistent workers belong to the user's loader
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    attributes[name] = NotedSampler(getattr(loader, name))
    return clone


class NotedSampler(Sampler[Any]):
    """The user's own sampler, or batch sampler, whose indices are noted on the way to the loader."""

    def __init__(self, order: Any) -> None:
        self.order = order
        self._on_the_way: deque[Any] = deque()

    def __iter__(self) -> Iterator[Any]:
        self._on_the_way.clear()
        for indices in self.order:
            self._on_the_way.append(indices)
            yield indices

    def __len__(self) -> int:
        return len(self.order)

    def advance(self) -> Any:
        """The indices of the batch that the loop has just taken; None if there is no such batch."""
        return self._on_the_way.popleft() if self._on_the_way else None
