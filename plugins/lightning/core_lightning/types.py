"""Names that annotations use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypedDict

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from core import ReduceOp

__all__ = [
    "EVAL_DATALOADERS",
    "STEP_OUTPUT",
    "TRAIN_DATALOADERS",
    "DistributedDataParallel",
    "LRScheduler",
    "LRSchedulerConfig",
    "LRSchedulerConfigType",
    "LRSchedulerPLType",
    "LRSchedulerTypeTuple",
    "LRSchedulerTypeUnion",
    "Optimizable",
    "OptimizerConfig",
    "OptimizerLRScheduler",
    "OptimizerLRSchedulerConfig",
    "ReduceLROnPlateau",
    "ReduceOp",
]

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
Optimizable = Optimizer
OptimizerLRScheduler = Any


@dataclass
class LRSchedulerConfig:
    """A scheduler, and when it is stepped."""

    scheduler: LRScheduler | ReduceLROnPlateau
    name: str | None = None
    interval: str = "epoch"
    frequency: int = 1
    reduce_on_plateau: bool = False
    monitor: str | None = None
    strict: bool = True


class LRSchedulerConfigType(TypedDict, total=False):
    """The dict of a scheduler that `configure_optimizers` may return."""

    scheduler: LRScheduler | ReduceLROnPlateau
    name: str | None
    interval: str
    frequency: int
    reduce_on_plateau: bool
    monitor: str | None
    strict: bool


class OptimizerConfig(TypedDict):
    """The dict of an optimizer alone."""

    optimizer: Optimizer


class OptimizerLRSchedulerConfig(TypedDict):
    """The dict of an optimizer and its scheduler."""

    optimizer: Optimizer
    lr_scheduler: LRScheduler | ReduceLROnPlateau | LRSchedulerConfigType
