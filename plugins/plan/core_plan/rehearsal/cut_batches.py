"""A strategy whose batches have fewer samples than the program's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from core.data import map_leaves, size_of
from core.registry import STRATEGY_REGISTRY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core import Strategy
    from core_plan.contender import Contender


@dataclass(frozen=True)
class CutBatches:
    """The strategy of a contender, made in the process that rehearses it, which gets a part of each
    training batch.

    Attributes:
        contender: the strategy.
        num_parts: into so many a batch is cut, of which the first is trained on.
    """

    contender: Contender
    num_parts: int

    def __call__(self, given: Any) -> Strategy:
        """The strategy in place of the program's."""
        strategy = STRATEGY_REGISTRY.create(self.contender.alias, **self.contender.options)
        own = strategy.setup_dataloader
        vars(strategy)["setup_dataloader"] = lambda loader, stage: (
            own(_Parts(loader, self.num_parts), stage) if stage == "fit" else own(loader, stage)
        )
        return strategy


class _Parts:
    """The first part of each batch of a loader; otherwise the loader."""

    def __init__(self, loader: Any, num_parts: int) -> None:
        self._loader, self._num_parts = loader, num_parts

    def __iter__(self) -> Iterator[Any]:
        # a generator would keep the whole batch while its part is trained on
        return map(self._first, self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def _first(self, batch: Any) -> Any:
        size = size_of(batch)
        if size is None or size < self._num_parts:
            raise ValueError(
                f"A batch of {size} samples can't be cut into {self._num_parts} parts."
            )
        fewer = -(-size // self._num_parts)

        def cut(leaf: Any) -> Any:
            is_cut = isinstance(leaf, torch.Tensor) and leaf.ndim > 0 and len(leaf) == size
            return leaf[:fewer].clone() if is_cut else leaf  # a view would keep the memory of all

        return map_leaves(cut, batch)
