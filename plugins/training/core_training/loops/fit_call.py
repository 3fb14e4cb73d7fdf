"""One call of `fit`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core_training.stage_data.sources import TRAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from core_training.stage_data.datamodule import DataModule
    from core_training.stage_data.sources import Source


@dataclass(frozen=True)
class FitCall:
    """The arguments of one call of `fit`.

    Attributes:
        module: the user's own.
        sources: of the loaders.
        datamodule: or none.
    """

    module: nn.Module
    sources: Sequence[Source]
    datamodule: DataModule | None = None

    @property
    def train(self) -> Source:
        """The source of the training loaders."""
        return next(source for source in self.sources if source.role is TRAIN)

    @property
    def owners(self) -> list[Any]:
        """The objects that may have a setting as an attribute."""
        return [owner for owner in (self.datamodule, self.module) if owner is not None]
