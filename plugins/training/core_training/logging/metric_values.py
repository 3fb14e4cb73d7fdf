"""The newest values of everything that was logged."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from core_training.logging.non_finite_losses import NonFiniteLossCheck
from core_training.logging.scalar_widths import to_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from core_training.logging.metric_collector import MetricCollector
    from core_training.logging.metric_entry import Entry
    from core_training.progress import Progress

Origin: TypeAlias = Literal["step", "epoch", "validation"]
_CPU = torch.device("cpu")


class MetricValues:
    """The values of `self.log` and of callbacks, as they are shown. A value stays until its name is
    logged again.

    Attributes:
        train: collects what training logs.
        evaluation: collects what validation and test log.
        losses: warns of those that are NaN or infinite.
    """

    def __init__(self, make_metrics: type[MetricCollector], progress: Progress) -> None:
        self.train = make_metrics(on_epoch_default=False)
        self.evaluation = {
            stage: make_metrics(on_epoch_default=True) for stage in ("validation", "test")
        }
        self._collectors = [self.train, *self.evaluation.values()]
        for metrics in self._collectors:
            metrics.collectors = self._collectors
        self.losses = NonFiniteLossCheck(progress)
        # of epochs reduced, of steps of a stage that has paused, of callbacks
        self._kept: dict[str, object] = {}

    def newest(self) -> dict[str, Tensor]:
        """Scalar CPU tensors by name. Waits for the device."""
        values = {name: to_tensor(value, _CPU) for name, value in self._newest().items()}
        owned = set(chain.from_iterable(entry.shown_names for entry in self._entries()))
        for entry in self._entries():
            # Under its own name too: the epoch's value, or the step's as long as there is none.
            found = values.get(entry.epoch_name, values.get(entry.step_name))
            if found is not None and entry.name not in owned:
                values[entry.name] = found
        return values

    def for_bar(self) -> dict[str, float]:
        """The values that were logged with `prog_bar=True`. Waits for the device."""
        of_bar = (entry.shown_names for entry in self._entries() if entry.prog_bar)
        shown = set(chain.from_iterable(of_bar))
        return {name: float(value) for name, value in self._newest().items() if name in shown}

    def names(self) -> set[str]:
        """All names that have a value, or had one before."""
        return set(self._kept).union(*(metrics.names() for metrics in self._collectors))

    def logger_names(self) -> set[str]:
        """All names that go to the loggers."""
        return set[str]().union(*(metrics.logger_names() for metrics in self._collectors))

    def origin(self, name: str) -> Origin | None:
        """The event that renews a value on this rank: each training step, a training epoch's end,
        or a validation run.

        None if neither training nor validation has logged it in this run: nobody has, or a
        callback.
        """
        for entry in self.train.entries.values():
            if name == entry.epoch_name or (name == entry.name and entry.on_epoch):
                return "epoch"
            if name == entry.step_name:
                return "step"
        if name in self.evaluation["validation"].names():
            return "validation"
        return None

    def take(self, values: Mapping[str, Any]) -> None:
        """Show values that were measured or reduced elsewhere."""
        self._kept.update(values)

    def keep_step_values(self) -> None:
        """Keep the steps' newest values, before something newer comes from another stage or from
        the epoch.
        """
        for metrics in self._collectors:
            self._kept.update(metrics.fresh_values())
        for entry in self._entries():
            entry.is_fresh = False  # newer ones may come

    def forget_epoch_values(self) -> None:
        """Show nothing that was logged so far any more."""
        self.keep_step_values()
        self._kept.clear()

    def begin_stage(self) -> None:
        """A stage begins, perhaps with another module: forget everything."""
        self._kept.clear()
        for metrics in self._collectors:
            metrics.reset()
        self.losses.begin_stage()

    def end_stage(self) -> None:
        """A stage is over, perhaps within an epoch: the next one may log its torchmetrics objects
        too.
        """
        for entry in self._entries():
            if entry.metric is not None:
                entry.metric.reset()

    def _newest(self) -> dict[str, Any]:
        values = dict(self._kept)
        for metrics in self._collectors:
            values.update(metrics.fresh_values())
        return values

    def _entries(self) -> Iterator[Entry]:
        for metrics in self._collectors:
            yield from metrics.entries.values()
