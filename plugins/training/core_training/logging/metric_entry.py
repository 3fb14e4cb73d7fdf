"""A name that the user logs: its options, its newest value, its reduction, and the result of a
torchmetrics object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from core_training.logging import log_errors
from core_training.logging.scalar_widths import add, pick, to_tensor, widen

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
        total, count: running reduction of an epoch, of 64 bits where the device has them; for the
            mean, weighted by batch sizes, or by the weights that steps gave, which may be tensors.
        metric: a torchmetrics object that reduces by itself.
        dataloader_idx: of several loaders, the one in which it was logged first.
        is_stepwise: the newest value alone is kept, as this rank has it.
        in_batch: it was logged first while a batch was running.
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
    is_stepwise: bool = False
    in_batch: bool = False

    @property
    def step_name(self) -> str:
        """The name of step values, with a suffix if they are reduced over an epoch too."""
        return f"{self.name}_step" if self.on_epoch else self.name

    @property
    def epoch_name(self) -> str:
        """The name of epoch values, with a suffix if single steps are logged too."""
        return f"{self.name}_epoch" if self.on_step else self.name

    def add(self, value: Any, weight: float) -> None:
        """Add a value of one batch to the epoch's reduction. One of no samples is ignored, even if
        it is NaN.
        """
        if not weight:
            return
        total, adds = self.total, self.reduce_fx in SUMS
        if (
            adds
            and type(total) is Tensor is type(value)
            and total.dtype is torch.float64
            and not value.ndim
        ):
            # in float64, by one kernel; a sum's weights are 1
            self.total = torch.add(total, value, alpha=weight)
            self.count += weight
            return
        if isinstance(value, Tensor):
            value = widen(value, is_float=type(weight) is float)
        self.merge(value * weight, weight)  # a new tensor: the user may change the old one

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

    def merge(self, total: Any, count: float | Tensor) -> None:
        """Merge another running reduction into this one."""
        if self.total is None:
            self.total, self.count = total, count
            return
        self.count = self.count + count  # not in place: it may be a tensor that a step gave
        self.total = join_totals(self.reduce_fx, self.total, total)

    def clear(self) -> None:
        """Begin a new epoch. The newest value stays to be seen."""
        self.total, self.count = None, 0.0


def join_totals(reduction: str, so_far: Any, more: Any) -> Any:
    """Two running totals as one."""
    if reduction in SUMS:
        return so_far + more if type(so_far) is type(more) else add(so_far, more)
    return pick(reduction, so_far, more)


@dataclass(frozen=True, slots=True)
class ComputedMetric:
    """The result of a torchmetrics object, after so many updates."""

    metric: Any
    value: float
    num_updates: int

    @property
    def is_stale(self) -> bool:
        """True if the object was updated since."""
        return _num_updates(self.metric) > self.num_updates

    @classmethod
    def of(cls, name: str, metric: Any, *, recompute: bool) -> ComputedMetric:
        """All ranks. Compute; `recompute` forgets what was computed before, since another rank's
        object was updated.
        """
        if recompute:
            for part in _parts_of(metric):
                part._computed = None
        return cls(metric, log_errors.as_value(name, metric.compute()), _num_updates(metric))


def _num_updates(metric: Any) -> int:
    return sum(part._update_count for part in _parts_of(metric))


def _parts_of(metric: Any) -> list[Any]:
    """A torchmetrics object, and those that it is made of; none of another library."""
    return (
        [part for part in metric.modules() if hasattr(part, "_update_count")]
        if hasattr(metric, "modules")
        else []
    )
