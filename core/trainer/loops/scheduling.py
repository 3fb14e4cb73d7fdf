"""The steps of learning-rate schedulers: their times, and the metrics that they take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import Capability, ModuleError
from core.trainer.hooks.events import overrides
from core.trainer.module.optimization import takes_metric

if TYPE_CHECKING:
    from core.trainer.module.optimization import Scheduler
    from core.trainer.run import Run


def schedulers_by(run: Run, interval: str, *, manual: bool) -> list[Scheduler]:
    """The schedulers that the loop steps at this interval; none if the user (manual optimization) or an engine does."""
    owned = manual or Capability.OWNS_SCHEDULER in run.strategy.capabilities
    return [] if owned else [item for item in run.strategy.lr_schedulers if item.interval == interval]


def step_schedulers(run: Run, schedulers: list[Scheduler], count: int) -> None:
    """All ranks. Step those whose frequency is due; one that takes a metric, with a value that it hasn't had yet.

    Args:
        run: whose metrics they may monitor.
        schedulers: of one interval.
        count: intervals so far.

    Raises:
        ModuleError: a metric that one monitors was not logged.
    """
    for item in schedulers:
        if count % item.frequency:
            continue
        if takes_metric(item):
            item.is_waiting = True
            step_waiting(run, [item])
        elif overrides(run.module, "lr_scheduler_step"):
            run.module.lr_scheduler_step(item.scheduler, None)
        else:
            item.scheduler.step()


def step_waiting(run: Run, schedulers: list[Scheduler]) -> None:
    """All ranks. Step those that are due and whose metric is there; each value counts once.

    Args:
        run: whose metrics they monitor.
        schedulers: of any interval.

    Raises:
        ModuleError: a metric that one monitors was not logged.
    """
    for item in schedulers:
        if not item.is_waiting or not _is_renewed(run, item):
            continue
        item.is_waiting = False
        if (value := _monitored(run, item)) is None:
            continue
        if overrides(run.module, "lr_scheduler_step"):
            run.module.lr_scheduler_step(item.scheduler, value)
        else:
            item.scheduler.step(value)


def _is_renewed(run: Run, item: Scheduler) -> bool:
    """True if the metric's value is newer than the last step with it; that is then used up."""
    assert item.monitor is not None  # those that take a metric name one
    origin = run.origin_of(item.monitor)
    if origin not in ("epoch", "validation"):
        return True
    is_renewed = origin in item.renewed_by
    item.renewed_by.discard(origin)
    return is_renewed


def _monitored(run: Run, item: Scheduler) -> float | None:
    values: dict[str, Any] = run.logged.newest()
    if item.monitor in values:
        return float(values[item.monitor])
    if not item.strict:
        return None
    raise ModuleError(
        f"A scheduler monitors {item.monitor!r}, which was not logged; logged were {sorted(values)}. "
        f"Call self.log({item.monitor!r}, ...), or give the scheduler 'strict': False."
    )
