"""The data, progress and metrics of a Trainer's run, for modules and callbacks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from core.fabric import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from core.contract import Logger, Strategy
    from core_training.logging.metric_collector import MetricCollector
    from core_training.logging.metric_values import MetricValues
    from core_training.progress import Progress
    from core_training.run import Run
    from core_training.settings.options import NumBatches, TrainerOptions
    from core_training.stage_data.datamodule import DataModule
    from core_training.stage_data.evaluation_loaders import StageLoader
    from core_training.stage_data.loaders import Loaders


class DataViews(Ranks):
    """The part of `Trainer` that shows loaders, progress and metrics.

    Attributes:
        run: the running stage, or else the last one; before the first stage one with the Trainer's
            arguments.
    """

    run: Run

    @property
    def strategy(self) -> Strategy:
        """The strategy that trains the module; resolved when the trainer was made."""
        return self.run.fabric.strategy

    @property
    def options(self) -> TrainerOptions:
        """The options for the loops, checked."""
        return self.run.options

    @options.setter
    def options(self, value: TrainerOptions) -> None:
        self.run.options = value

    # progress -------------------------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """The counters of training."""
        return self.run.progress

    @property
    def current_epoch(self) -> int:
        """Number of the running epoch, from 0."""
        return self.progress.epoch

    @property
    def global_step(self) -> int:
        """Optimizer steps that updated parameters."""
        return self.progress.global_step

    def count_unfinished(self) -> int:
        """Batches of a window whose optimizer step is still to come."""
        return self.run.count_unfinished()

    # data -----------------------------------------------------------------------------------------

    @property
    def datamodule(self) -> DataModule | None:
        """The data module of this stage, if there is one."""
        return self.run.datamodule

    @property
    def loaders(self) -> Loaders:
        """The loaders of this stage; none before the first one."""
        return self.run.loaders

    @property
    def train_dataloader(self) -> Any:
        """This rank's training loader; several in the structure in which the user gave them. None
        before `fit`.
        """
        from core_training.stage_data.combined import CombinedLoader

        train = self.loaders.train
        if isinstance(train, CombinedLoader):
            return train.loaders
        return train

    @property
    def val_dataloaders(self) -> Any:
        """This rank's validation loader, or the list of them; None if there is none."""
        return _shown(self.loaders.validation)

    @property
    def test_dataloaders(self) -> Any:
        """This rank's test loader, or the list of them; None if there is none."""
        return _shown(self.loaders.test)

    @property
    def predict_dataloaders(self) -> Any:
        """This rank's prediction loader, or the list of them; None if there is none."""
        return _shown(self.loaders.predict)

    @property
    def num_training_batches(self) -> NumBatches:
        """Batches of a training epoch on this rank; infinite if unknown."""
        return self.loaders.num_train_batches

    @property
    def num_val_batches(self) -> list[NumBatches]:
        """Batches of a validation run on this rank, for each loader."""
        return _counts(self.loaders.validation)

    @property
    def num_sanity_val_batches(self) -> list[NumBatches]:
        """Batches of the sanity check on this rank, for each validation loader."""
        steps = self.options.num_sanity_val_steps
        if steps < 0:
            return self.num_val_batches
        return [min(batches, steps) for batches in self.num_val_batches]

    @property
    def num_test_batches(self) -> list[NumBatches]:
        """Batches of a test run on this rank, for each loader."""
        return _counts(self.loaders.test)

    @property
    def num_predict_batches(self) -> list[NumBatches]:
        """Batches of a prediction run on this rank, for each loader."""
        return _counts(self.loaders.predict)

    @property
    def estimated_stepping_batches(self) -> NumBatches:
        """All ranks, within `fit`. Optimizer steps that the run will make by its limits, from its
        first epoch on.

        For schedulers, in `configure_optimizers`: asks for the loaders if that hasn't been done.
        Infinite without a limit. The accumulation window is the one that a
        GradientAccumulationScheduler sets in each epoch, or else is taken to stay as it is; the
        loader is taken to keep its length.
        """
        run, options = self.run, self.options
        run.loaders.setup(self.strategy)
        num_batches, epochs = self.num_training_batches, options.max_epochs
        steps: NumBatches = math.inf
        if epochs == 0:
            steps = 0
        elif epochs is not None and math.isfinite(num_batches):
            steps = math.ceil(num_batches / run.window) * epochs
            if (window_of := run.window_of) is not None:
                steps = sum(math.ceil(num_batches / window_of(epoch)) for epoch in range(epochs))
        steps *= self.strategy.updates_per_batch
        return steps if options.max_steps < 0 else min(steps, options.max_steps)

    def make_transfer(self, dataloader_idx: int = 0) -> Callable[[Any], Any] | None:
        """The function that moves a loader's batches to the device; None if they are there."""
        return self.run.make_transfer(dataloader_idx)

    # logged values --------------------------------------------------------------------------------

    @property
    def loggers(self) -> Sequence[Logger]:
        """The loggers. On all ranks but 0, while a stage runs, some that do nothing."""
        return self.run.stage_loggers

    @loggers.setter
    def loggers(self, loggers: Sequence[Logger]) -> None:
        self.run.loggers = self.run.stage_loggers = list(loggers)

    @property
    def logger(self) -> Logger | None:
        """The first logger, if there is one. On all ranks but 0, while a stage runs, one that does
        nothing.
        """
        return next(iter(self.loggers), None)

    @property
    def logged(self) -> MetricValues:
        """The newest values of everything that was logged."""
        return self.run.logged

    @property
    def metrics(self) -> MetricCollector:
        """The values that the running stage, or the last one, logs."""
        return self.run.metrics

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The newest value of everything that was logged: scalar CPU tensors by name. Reading waits
        for the device.

        Numbers and what was reduced over an epoch are float64, or int64 for sums and extremes of
        integers; a step's tensor has its own format.

        A value stays until its name is logged again, in whatever stage. What is logged by step and
        by epoch is found under its own name too, unless another stage logs just that: the epoch's
        value, or before the first epoch's end the step's.
        """
        return self.run.logged.newest()

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """Of `callback_metrics`, what the running stage, or the last one, has logged for the
        loggers; of `fit` all.
        """
        names = self.run.logged.logger_names()
        return {name: value for name, value in self.callback_metrics.items() if name in names}

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """The metrics that were logged with `prog_bar=True`. Reading waits for the device."""
        from core_training.views.logger_publisher import values_for_bar

        return values_for_bar(self.run)

    def log_metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Hand values to the loggers, on rank 0, with the running epoch.

        Args:
            values: a number by name.
            step: optimizer steps that they belong to; None is `global_step`.
        """
        from core_training.views.logger_publisher import log_metrics

        log_metrics(self.run, values, step)


def _counts(loaders: Sequence[StageLoader]) -> list[NumBatches]:
    return [loader.num_batches for loader in loaders]


def _shown(loaders: Sequence[StageLoader]) -> object:
    shown = [loader.loader for loader in loaders]
    if len(shown) > 1:
        return shown
    return next(iter(shown), None)
