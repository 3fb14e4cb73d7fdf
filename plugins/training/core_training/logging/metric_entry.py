"""A name that the user logs: its options, its newest value, and its reduction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from core_training.logging.scalar_widths import on_one_device, to_tensor, widen

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    LogOptions: TypeAlias = tuple[
        bool, bool, bool | None, bool | None, str | Callable[..., Any], bool | None, bool
    ]
    """The arguments of `log` that have to be the same in every call, in this order: `prog_bar`,
    `logger`, `on_step`, `on_epoch`, `reduce_fx`, `sync_dist`, `rank_zero_only`. A plain tuple: it
    is made in each step.
    """

SUMS = ("mean", "sum")
REDUCTIONS = (*SUMS, "min", "max")


@dataclass(slots=True, eq=False)
class Entry:
    """One logged name.

    Attributes:
        options: the arguments that must be the same in every call; empty if a checkpoint brought
            this entry back.
        default: `MetricCollector.on_epoch_default` when it was logged first.
        syncs_steps: reduce single steps over ranks too.
        last: the newest value, detached, on its device; of a step's tensor a copy, which the user
            can't change.
        last_dtype: of a tensor whose number alone is `last`.
        is_fresh: it is the newest of its name, from whatever stage.
        total, count: running reduction of an epoch, a tensor of 64 bits where the device has them;
            for the mean, weighted by batch sizes, or by the weights that steps gave, which may be
            tensors.
        metric: a torchmetrics object that reduces by itself.
        dataloader_idx: of several loaders, the one in which it was logged first.
        in_batch: it was logged first while a batch was running.
        is_stepwise: the newest value alone is kept, as this rank has it.
    """

    name: str
    on_step: bool
    on_epoch: bool
    prog_bar: bool
    logger: bool
    reduce_fx: str
    sync_dist: bool | None
    rank_zero_only: bool
    options: LogOptions | tuple[()]
    default: bool = False
    syncs_steps: bool = False
    last: Any = None
    last_dtype: torch.dtype | None = None
    is_fresh: bool = False
    total: Any = None
    count: float | Tensor = 0.0
    metric: Any = None
    dataloader_idx: int | None = None
    in_batch: bool = False
    is_stepwise: bool = False

    @property
    def step_name(self) -> str:
        """The name of step values, with a suffix if they are reduced over an epoch too."""
        if self.on_epoch:
            return f"{self.name}_step"
        return self.name

    @property
    def epoch_name(self) -> str:
        """The name of epoch values, with a suffix if single steps are logged too."""
        if self.on_step:
            return f"{self.name}_epoch"
        return self.name

    @property
    def shown_names(self) -> tuple[str, str]:
        """The names of step values and of epoch values."""
        return self.step_name, self.epoch_name

    @property
    def newest(self) -> Any:
        """The newest value of a step, as it is; None if there is none."""
        if self.last_dtype is not None:
            return torch.tensor(self.last, dtype=self.last_dtype)
        if self.metric is None:
            return self.last
        newest = getattr(self.metric, "_forward_cache", None)
        if isinstance(newest, Tensor):
            return newest.detach()  # torch warns of a number that is made of a loss
        return newest

    def add(self, value: Any, weight: float) -> None:
        """Add a value of one batch to the epoch's reduction. One of no samples is ignored, even if
        it is NaN.
        """
        if not weight:
            return
        total = self.total
        if self.reduce_fx in SUMS and total is not None and total.dtype is torch.float64:
            # In float64; a sum's weights are 1.
            if not isinstance(value, Tensor):
                self.total, self.count = total + value * weight, self.count + weight
                return
            if type(value) is Tensor and not value.ndim:  # by one kernel
                self.total = torch.add(total, value, alpha=weight)
                self.count += weight
                return
        wide = widen(to_tensor(value), is_float=type(weight) is float)
        self.merge(wide * weight, weight)  # a new tensor: the user may change the old one

    def add_weighted(self, value: Any, weight: float | Tensor) -> None:
        """Add a value with a weight that its step gave. Where that is a tensor, there is no wait
        for its device.
        """
        if not isinstance(weight, Tensor):
            self.add(value, weight)
            return
        wide = widen(weight.detach(), is_float=True)
        value = widen(to_tensor(value, wide.device), is_float=True)
        self.merge(torch.where(wide == 0, 0.0, value * wide), wide)

    def merge(self, total: Tensor, count: float | Tensor) -> None:
        """Merge another running reduction into this one."""
        if self.total is None:
            self.total, self.count = total, count
            return
        self.count = self.count + count  # not in place: it may be a tensor that a step gave
        self.total = join_totals(self.reduce_fx, *on_one_device(self.total, total))

    def clear(self) -> None:
        """Begin a new epoch. The newest value stays to be seen."""
        self.total, self.count = None, 0.0


def join_totals(reduction: str, so_far: Any, more: Any) -> Any:
    """Two running totals, both tensors or both numbers, as one. An extreme is NaN if one of them
    is.
    """
    if reduction in SUMS:
        return so_far + more
    if not isinstance(so_far, Tensor):
        return join_totals(reduction, to_tensor(so_far), to_tensor(more)).item()
    if reduction == "min":
        return torch.minimum(so_far, more)
    return torch.maximum(so_far, more)
