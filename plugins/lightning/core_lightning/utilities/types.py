"""Names that annotations use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

_NUMBER = int | float
_METRIC = torch.Tensor | _NUMBER
_PATH = str | PathLike[str]
_DEVICE = torch.device | str | int
_MAP_LOCATION_TYPE = Any
STEP_OUTPUT = torch.Tensor | Mapping[str, Any] | None
_EVALUATE_OUTPUT = list[Mapping[str, float]]
_PREDICT_OUTPUT = list[Any] | list[list[Any]]
TRAIN_DATALOADERS = EVAL_DATALOADERS = Any
LRSchedulerTypeUnion = LRSchedulerPLType = LRScheduler | ReduceLROnPlateau
LRSchedulerTypeTuple = (LRScheduler, ReduceLROnPlateau)
OptimizerLRScheduler = Any
LRSchedulerConfigType = OptimizerConfig = OptimizerLRSchedulerConfig = dict[str, Any]
"""The dicts that `configure_optimizers` may return."""


@dataclass
class LRSchedulerConfig:
    """A scheduler, and when it is stepped; see `core.Trainer`'s, of which this has all fields."""

    scheduler: LRScheduler | ReduceLROnPlateau
    name: str | None = None
    interval: str = "epoch"
    frequency: int = 1
    reduce_on_plateau: bool = False
    monitor: str | None = None
    strict: bool = True
    is_waiting: bool = field(default=False, init=False, repr=False)
    renewed_by: set[str] = field(default_factory=set, init=False, repr=False)
    origin: str | None = field(default=None, init=False, repr=False)

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's own state."""
        return dict(self.scheduler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.scheduler.load_state_dict(state)
