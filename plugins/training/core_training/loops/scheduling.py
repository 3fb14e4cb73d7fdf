"""The steps of learning-rate schedulers: their times, and the metrics that they take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import Capability, ModuleError, did_you_mean
from core_training.hooks.events import override_of
from core_training.module.optimization import takes_metric

if TYPE_CHECKING:
    from core_training.logging.metric_values import Origin
    from core_training.module.optimization import Scheduler
    from core_training.run import Run

_EVENTS = ("epoch", "validation")


def schedulers_by(run: Run, interval: str, *, manual: bool) -> list[Scheduler]:
    """The schedulers that the loop steps at this interval; none if the user, an engine or an
    observer does.
    """
    is_owned = Capability.OWNS_SCHEDULER in run.strategy.capabilities
    if manual or is_owned or not run.loop_policy.steps_schedulers:
        return []
    return [item for item in run.strategy.lr_schedulers if item.interval == interval]


def step_schedulers(run: Run, schedulers: list[Scheduler], count: int) -> None:
    """All ranks. Step those whose frequency is due; one that takes a metric, with a value that it
    hasn't had yet.

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
        else:
            _step(run, item)


def step_waiting(run: Run, schedulers: list[Scheduler]) -> None:
    """All ranks. Step those that are due and whose metric is there; each value counts once, and
    rank 0's for all.

    Args:
        run: whose metrics they monitor.
        schedulers: of any interval.

    Raises:
        ModuleError: a metric that one monitors was not logged.
    """
    for item in schedulers:
        if not item.is_waiting or (item.origin in _EVENTS and item.origin not in item.renewed_by):
            continue  # all ranks alike: nothing is asked for while nothing can have come
        origin, value, names = run.strategy.broadcast(_monitored(run, item))
        item.origin = None
        if value is not None:
            item.origin = origin
        if origin in _EVENTS:
            if origin not in item.renewed_by:
                continue
            item.renewed_by.remove(origin)  # each value counts once
        item.is_waiting = False
        if value is not None:
            _step(run, item, value)
        elif item.strict and item.monitor is not None:
            hint = did_you_mean(item.monitor, names)
            raise ModuleError(
                f"A scheduler monitors {item.monitor!r}, which was not logged; logged were "
                f"{names}.{hint} Call self.log({item.monitor!r}, ...), or give the scheduler "
                "'strict': False."
            )


def _step(run: Run, item: Scheduler, metric: float | None = None) -> None:
    """Step a scheduler, by the module's hook if it has one."""
    hook = override_of(run.module, "lr_scheduler_step")
    if hook is not None:
        hook(item.scheduler, metric)
    elif metric is None:
        item.scheduler.step()
    else:
        item.scheduler.step(metric)


def _monitored(run: Run, item: Scheduler) -> tuple[Origin | None, float | None, list[str]]:
    """The event that renews the metric, its value, and the names that were logged, as this rank has
    them.
    """
    assert item.monitor is not None  # those that take a metric name one
    values: dict[str, Any] = run.logged.newest()
    origin = run.origin_of(item.monitor)
    if item.monitor not in values:
        return origin, None, sorted(values)
    return origin, float(values[item.monitor]), []
