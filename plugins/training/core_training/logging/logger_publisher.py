"""The way of logged values to loggers, bar and callbacks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from core_training.logging.scalar_widths import read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from core.contract import Logger, Strategy
    from core_training.logging.metric_collector import MetricCollector
    from core_training.logging.metric_values import MetricValues
    from core_training.profilers import Profiler
    from core_training.progress import Progress


class LoggerPublisher:
    """Reduces what `self.log` has collected, and hands it to the loggers of this rank.

    Attributes:
        loggers: those of this rank, once it is known which one that is.
        has_published_step: True once values of single steps were handed over.
    """

    def __init__(
        self,
        logged: MetricValues,
        progress: Progress,
        loggers: Sequence[Logger],
        strategy: Strategy,
        profiler: Profiler | None,
    ) -> None:
        self.loggers, self.has_published_step = loggers, False
        self._logged, self._progress = logged, progress
        self._strategy, self._profiler = strategy, profiler

    def for_bar(self) -> dict[str, float]:
        """The metrics that were logged with `prog_bar=True`. Reading waits for the device."""
        values = self._logged.for_bar()
        self._check_losses(values)
        return values

    def publish_step(self, metrics: MetricCollector, output: object, module: nn.Module) -> None:
        """All ranks. Hand the newest step values to the loggers, and look at the last output of
        `training_step`. Waits for the device once.
        """
        names, losses = metrics.logger_names(), self._logged.losses
        values = {name: value for name, value in metrics.step_values().items() if name in names}
        *numbers, loss = read([*values.values(), losses.scalar_of(output)])
        if values:
            logged = dict(zip(values, numbers, strict=True))
            self._check_losses(logged)
            self.log_metrics(logged)
            self.has_published_step = True
        losses.look_at_output(output, module, self._strategy, loss)

    def show_epoch(self, metrics: MetricCollector, module: nn.Module) -> None:
        """All ranks, before the hooks of an epoch's end. Reduce what it has logged, and show it to
        callbacks.
        """
        self._reduce_epoch(metrics, module, is_over=False)

    def publish_epoch(
        self,
        metrics: MetricCollector,
        module: nn.Module,
        *,
        is_over: bool = True,
        hands_over: bool = True,
    ) -> dict[str, float]:
        """All ranks. Reduce what an epoch has logged, show it to callbacks, and hand it to the
        loggers.

        Args:
            metrics: of the stage.
            module: has torchmetrics objects, perhaps.
            is_over: the epoch has come to its end. False: a limit was reached within it, and it may
                go on one day.
            hands_over: False for a sanity check, of which loggers get nothing.
        """
        values = self._reduce_epoch(metrics, module, is_over)
        # Those of single steps too: they may be shown nowhere.
        steps = metrics.step_values().items()
        losses = {name: float(value) for name, value in steps if "loss" in name.lower()}
        self._check_losses({**values, **losses})
        names = metrics.logger_names()
        logged = {name: float(value) for name, value in values.items() if name in names}
        if logged and hands_over:
            self.log_metrics(logged)
        return values

    def log_metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Hand values to the loggers, on rank 0, with the running epoch.

        Args:
            values: a number by name.
            step: optimizer steps that they belong to; None is `global_step`.
        """
        if not self._strategy.is_global_zero or not self.loggers:
            return
        values = {"epoch": float(self._progress.epoch), **values}
        if step is None:
            step = self._progress.global_step
        with nullcontext() if self._profiler is None else self._profiler.profile("log_metrics"):
            for logger in self.loggers:
                logger.log_metrics(values, step)

    def _reduce_epoch(
        self, metrics: MetricCollector, module: nn.Module, is_over: bool
    ) -> dict[str, float]:
        self._logged.keep_step_values()
        values = metrics.reduce_epoch(self._strategy, module, is_over=is_over)
        self._logged.keep(values)
        return values

    def _check_losses(self, values: Mapping[str, float]) -> None:
        if self._strategy.is_global_zero:
            self._logged.losses.look_at_values(values, training=self._logged.train.names())
