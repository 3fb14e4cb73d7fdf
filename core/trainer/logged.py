"""What a Trainer knows of the values that were logged, and where they go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from core.contract import Logger, Strategy
    from core.trainer.metrics import Metrics
    from core.trainer.progress import Progress


class Logged:
    """The part of `Trainer` between `self.log`, whose values `Metrics` collects, and loggers, bar and callbacks.

    Attributes:
        metrics: of the running stage; one of the others.
        train_metrics: of training.
        evaluation_metrics: of validation and test.
        loggers: those of this rank.
    """

    metrics: Metrics
    train_metrics: Metrics
    evaluation_metrics: dict[str, Metrics]
    loggers: Sequence[Logger]
    module: Any
    progress: Progress
    sanity_checking: bool
    _epoch_values: dict[str, Tensor]

    if TYPE_CHECKING:

        @property
        def strategy(self) -> Strategy:
            """Reduces values over ranks."""

        @property
        def is_global_zero(self) -> bool:
            """Whether this rank writes."""

        def profile(self, action: str) -> AbstractContextManager[None]:
            """A context whose time the profiler reports."""

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The newest value of everything that was logged: scalar CPU tensors by name. Reading waits for the device.

        What is logged by step and by epoch is found under its own name too: the epoch's value, or before the first
        epoch's end the step's.
        """
        values = self._newest_values()
        for entry in (entry for metrics in self._all_metrics() for entry in metrics.entries.values()):
            if entry.on_step and entry.on_epoch:
                found = values.get(entry.epoch_name, values.get(entry.step_name))
                if found is not None:
                    values[entry.name] = found
        return values

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """Those that were logged with `prog_bar=True`. Reading waits for the device."""
        shown = set[str]().union(*(metrics.names(prog_bar=True) for metrics in self._all_metrics()))
        return {name: float(value) for name, value in self._newest_values().items() if name in shown}

    def publish_step(self, metrics: Metrics) -> None:
        """All ranks. Hand the newest step values to the loggers."""
        names = metrics.logger_names()
        values = {name: float(value) for name, value in metrics.step_values().items() if name in names}
        if values:
            self.log_metrics(values)

    def publish_epoch(self, metrics: Metrics, *, is_over: bool = True) -> dict[str, float]:
        """All ranks. Reduce what an epoch has logged, show it to callbacks, and hand it to the loggers.

        Args:
            metrics: of the stage.
            is_over: the epoch has come to its end. False: a limit was reached within it, and it may go on one day.
        """
        values = metrics.reduce_epoch(self.strategy, self.module, is_over=is_over)
        self._epoch_values.update(_to_tensors(values))
        names = metrics.logger_names()
        logged = {name: value for name, value in values.items() if name in names}
        if logged and not self.sanity_checking:
            self.log_metrics(logged)
        return values

    def take_metrics(self, values: Mapping[str, Any]) -> None:
        """Show values that were measured or reduced elsewhere in `callback_metrics`."""
        self._epoch_values.update(_to_tensors(values))

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

    def forget_epoch_values(self) -> None:
        """Show no value of an earlier epoch any more."""
        self._epoch_values.clear()

    def forget_metrics(self) -> None:
        """A stage begins, perhaps with another module."""
        self._epoch_values.clear()
        for metrics in self._all_metrics():
            metrics.reset()

    def _newest_values(self) -> dict[str, Tensor]:
        return {**self._epoch_values, **_to_tensors(self.metrics.step_values())}

    def _all_metrics(self) -> list[Metrics]:
        return [self.train_metrics, *self.evaluation_metrics.values()]


def _to_tensors(values: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(value).detach().cpu() for name, value in values.items()}
