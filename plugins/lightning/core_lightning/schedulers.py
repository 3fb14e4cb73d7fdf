"""The scheduler of LightningCLI that has the name of its metric."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim import lr_scheduler as torch_schedulers


class ReduceLROnPlateau(torch_schedulers.ReduceLROnPlateau):
    """torch's scheduler, with the metric that it watches.

    Args:
        optimizer: whose learning rate it lowers.
        monitor: name of the metric.
        args: of torch's scheduler.
        kwargs: likewise.
    """

    def __init__(self, optimizer: Optimizer, monitor: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(optimizer, *args, **kwargs)
        self.monitor = monitor


LRSchedulerTypeTuple = (torch_schedulers.LRScheduler, ReduceLROnPlateau)
LRSchedulerTypeUnion = torch_schedulers.LRScheduler | ReduceLROnPlateau
