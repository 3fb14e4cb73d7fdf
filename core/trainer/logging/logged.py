"""The part of a Trainer that passes logged values on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from core.contract import Logger, Strategy
    from core.trainer.logging.logged_values import LoggedValues
    from core.trainer.logging.metrics import Metrics
    from core.trainer.loops.progress import Progress


class Logged:
    """The part of `Trainer` between `self.log`, whose values `Metrics` collects, and loggers, bar and callbacks.

    Attributes:
        logged: the newest values of everything.
        loggers: those of this rank.
    """

    logged: LoggedValues
    metrics: Metrics
    loggers: Sequence[Logger]
    module: Any
    progress: Progress
    sanity_checking: bool

    if TYPE_CHECKING:

        @property
        def strategy(self) -> Strategy:
            """Reduces values over ranks."""

        @property
        def is_global_zero(self) -> bool:
            """True on the rank that writes."""

        def profile(self, action: str) -> AbstractContextManager[None]:
            """A context whose duration the profiler reports."""

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The newest value of everything that was logged: scalar CPU tensors by name. Reading waits for the device.

        Numbers and what was reduced over an epoch are float64, or int64 for sums and extremes of integers; a step's
        tensor has its own format.

        A value stays until its name is logged again, in whatever stage. What is logged by step and by epoch is found
        under its own name too, unless another stage logs just that: the epoch's value, or before the first epoch's end
        the step's.
        """
        return self.logged.newest()

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """Of `callback_metrics`, what the running stage, or the last one, has logged for the loggers."""
        names = self.metrics.logger_names()
        return {name: value for name, value in self.callback_metrics.items() if name in names}

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """The metrics that were logged with `prog_bar=True`. Reading waits for the device."""
        values = self.logged.for_bar()
        self._look_for_losses(values)
        return values

    def publish_step(self, metrics: Metrics) -> None:
        """All ranks. Hand the newest step values to the loggers."""
        names = metrics.logger_names()
        values = {name: float(value) for name, value in metrics.step_values().items() if name in names}
        if values:
            self._look_for_losses(values)
            self.log_metrics(values)

    def show_epoch(self, metrics: Metrics) -> None:
        """All ranks, before the hooks of an epoch's end. Reduce what it has logged, and show it to callbacks."""
        self._reduce_epoch(metrics, is_over=False)

    def publish_epoch(self, metrics: Metrics, *, is_over: bool = True) -> dict[str, float]:
        """All ranks. Reduce what an epoch has logged, show it to callbacks, and hand it to the loggers.

        Args:
            metrics: of the stage.
            is_over: the epoch has come to its end. False: a limit was reached within it, and it may go on one day.
        """
        values = self._reduce_epoch(metrics, is_over=is_over)
        self._look_for_losses(values)
        names = metrics.logger_names()
        logged = {name: float(value) for name, value in values.items() if name in names}
        if logged and not self.sanity_checking:
            self.log_metrics(logged)
        return values

    def log_metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Hand values to the loggers, on rank 0, with the running epoch.

        Args:
            values: a number by name.
            step: optimizer steps that they belong to; None is `global_step`.
        """
        if not self.is_global_zero or not self.loggers:
            return
        values = {"epoch": float(self.progress.epoch), **values}
        step = self.progress.global_step if step is None else step
        with self.profile("log_metrics"):
            for logger in self.loggers:
                logger.log_metrics(values, step)

    def _reduce_epoch(self, metrics: Metrics, *, is_over: bool) -> dict[str, float]:
        return self.logged.reduce_epoch(metrics, self.strategy, self.module, is_over=is_over)

    def _look_for_losses(self, values: Mapping[str, float]) -> None:
        if self.is_global_zero:
            self.logged.look_for_losses(values)
