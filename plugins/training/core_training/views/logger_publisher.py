"""The way of logged values to loggers, bar and callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core_training.logging.scalar_widths import read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core_training.logging.metric_collector import MetricCollector
    from core_training.run import Run


def values_for_bar(run: Run) -> dict[str, float]:
    """The metrics that were logged with `prog_bar=True`. Reading waits for the device."""
    values = run.logged.for_bar()
    _check_losses(run, values)
    return values


def publish_step(run: Run, output: object) -> None:
    """All ranks. Hand the newest step values of training to the loggers, and look at the last
    output of `training_step`. Waits for the device once.
    """
    metrics, losses = run.logged.train, run.logged.losses
    names = metrics.logger_names()
    values = {name: value for name, value in metrics.step_values().items() if name in names}
    *numbers, loss = read([*values.values(), losses.scalar_of(output)])
    if values:
        logged = dict(zip(values, numbers, strict=True))
        _check_losses(run, logged)
        log_metrics(run, logged)
        run.has_published_step = True
    losses.look_at_output(output, run.module, run.strategy, loss)


def show_epoch(run: Run, metrics: MetricCollector, *, is_over: bool = False) -> dict[str, float]:
    """All ranks, before the hooks of an epoch's end. Reduce what it has logged, and show it to
    callbacks.

    Args:
        run: in the stage.
        metrics: of the stage.
        is_over: a new epoch begins. False to look at one that goes on, or whose last hooks are
            still to run.
    """
    run.logged.keep_step_values()
    if metrics.held:  # a batch that was left out
        metrics.release(None)
    entries = metrics.entries.values()
    values = metrics.reduction.reduce(entries, run.strategy, run.module)
    if is_over:
        metrics.reduction.end_epoch()
        for entry in entries:
            entry.clear()
    run.logged.take(values)
    return values


def publish_epoch(
    run: Run, metrics: MetricCollector, *, is_over: bool = True, hands_over: bool = True
) -> dict[str, float]:
    """All ranks. Reduce what an epoch has logged, show it to callbacks, and hand it to the loggers.

    Args:
        run: in the stage.
        metrics: of the stage.
        is_over: the epoch has come to its end. False: a limit was reached within it, and it may go
            on one day.
        hands_over: False for a sanity check, of which loggers get nothing.
    """
    values = show_epoch(run, metrics, is_over=is_over)
    # Those of single steps too: they may be shown nowhere.
    steps = metrics.step_values().items()
    losses = {name: float(value) for name, value in steps if "loss" in name.lower()}
    _check_losses(run, {**values, **losses})
    names = metrics.logger_names()
    logged = {name: float(value) for name, value in values.items() if name in names}
    if logged and hands_over:
        log_metrics(run, logged)
    return values


def log_metrics(run: Run, values: Mapping[str, float], step: int | None = None) -> None:
    """Hand values to the loggers, on rank 0, with the running epoch.

    Args:
        run: whose loggers they are.
        values: a number by name.
        step: optimizer steps that they belong to; None is `global_step`.
    """
    if not run.strategy.is_global_zero or not run.stage_loggers:
        return
    values = {"epoch": float(run.progress.epoch), **values}
    if step is None:
        step = run.progress.global_step
    with run.profile("log_metrics"):
        for logger in run.stage_loggers:
            logger.log_metrics(values, step)


def _check_losses(run: Run, values: Mapping[str, float]) -> None:
    if run.strategy.is_global_zero:
        run.logged.losses.look_at_values(values, training=run.logged.train.names())
