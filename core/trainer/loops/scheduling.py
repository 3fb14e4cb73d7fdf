"""The steps of learning-rate schedulers: their times, and the metrics that they take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import Capability, ModuleError
from core.trainer.hooks.events import overrides
from core.trainer.module.optimization import takes_metric

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.trainer.module.optimization import Scheduler
    from core.trainer.trainer import Trainer


def schedulers_by(trainer: Trainer, interval: str, *, manual: bool) -> list[Scheduler]:
    """The schedulers that the loop steps at this interval; none if the user (manual optimization) or an engine does."""
    owned = manual or Capability.OWNS_SCHEDULER in trainer.strategy.capabilities
    return [] if owned else [item for item in trainer.strategy.lr_schedulers if item.interval == interval]


def step_schedulers(trainer: Trainer, schedulers: list[Scheduler], count: int) -> None:
    """All ranks. Step those whose frequency is due.

    Args:
        trainer: whose metrics they may monitor.
        schedulers: of one interval.
        count: intervals so far.

    Raises:
        ModuleError: a metric that one monitors was not logged.
    """
    own: Callable[..., None] | None = None
    if overrides(trainer.module, "lr_scheduler_step"):
        own = trainer.module.lr_scheduler_step
    for item in schedulers:
        if count % item.frequency:
            continue
        if not takes_metric(item):
            item.scheduler.step() if own is None else own(item.scheduler, None)
        elif (value := _monitored(trainer, item)) is not None:
            item.scheduler.step(value) if own is None else own(item.scheduler, value)


def _monitored(trainer: Trainer, item: Scheduler) -> float | None:
    values: dict[str, Any] = trainer.callback_metrics
    if item.monitor in values:
        return float(values[item.monitor])
    if not item.strict:
        return None
    raise ModuleError(
        f"A scheduler monitors {item.monitor!r}, which was not logged; logged were {sorted(values)}. "
        f"Call self.log({item.monitor!r}, ...), or give the scheduler 'strict': False."
    )
