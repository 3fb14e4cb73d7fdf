"""The counters and limits of a run, by the names that they have in Lightning's loops."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from core_lightning.model_helpers import is_overridden

if TYPE_CHECKING:
    from core import Trainer


@dataclass(frozen=True)
class Counters:
    """The counts of a loop, in all and in the running epoch or fit."""

    total: SimpleNamespace
    current: SimpleNamespace


@dataclass(frozen=True)
class Loop:
    """One of a Trainer's loops. What is read of it is the run's; only limits can be set."""

    trainer: Trainer

    @property
    def _trains(self) -> bool:
        return self.trainer.is_running and self.trainer.stage == "fit"

    @property
    def _has_ended_epoch(self) -> bool:
        """True while the hooks at an epoch's end are running."""
        progress = self.trainer.progress
        return progress.epoch_is_ending or progress.epoch_is_over

    @property
    def max_steps(self) -> int:
        """The limit in optimizer steps; -1 for none."""
        return self.trainer.max_steps

    @max_steps.setter
    def max_steps(self, steps: int) -> None:
        _set(self.trainer, max_steps=steps)

    @property
    def min_steps(self) -> int:
        """Optimizer steps for which a stop waits."""
        return self.trainer.options.min_steps

    @min_steps.setter
    def min_steps(self, steps: int | None) -> None:
        _set(self.trainer, min_steps=steps or 0)


class FitLoop(Loop):
    """Epochs of training."""

    @property
    def max_epochs(self) -> int:
        """The limit in epochs; -1 for none. One that is set counts from the next `fit` on, which goes on."""
        return -1 if self.trainer.options.max_epochs is None else self.trainer.options.max_epochs

    @max_epochs.setter
    def max_epochs(self, epochs: int | None) -> None:
        _set(self.trainer, max_epochs=None if epochs in (None, -1) else epochs)

    @property
    def min_epochs(self) -> int:
        """Epochs for which a stop waits."""
        return self.trainer.options.min_epochs

    @min_epochs.setter
    def min_epochs(self, epochs: int | None) -> None:
        _set(self.trainer, min_epochs=epochs or 0)

    @property
    def epoch_progress(self) -> Counters:
        """Epochs that are `ready`, `started`, `processed` and `completed`."""
        done = self.trainer.progress.epoch
        begun = done + (self._trains and (self.max_epochs < 0 or done < self.max_epochs))
        counts = SimpleNamespace(ready=begun, started=begun, processed=done + self._has_ended_epoch, completed=done)
        return Counters(counts, counts)

    @property
    def epoch_loop(self) -> EpochLoop:
        """The batches of an epoch."""
        return EpochLoop(self.trainer)

    @property
    def max_batches(self) -> int | float:
        """Batches of an epoch."""
        return self.trainer.num_training_batches


class EpochLoop(Loop):
    """Batches of a training epoch."""

    @property
    def batch_progress(self) -> Counters:
        """Batches that are `processed`."""
        progress = self.trainer.progress
        return Counters(SimpleNamespace(processed=progress.total_batches), SimpleNamespace(processed=progress.batch))

    @property
    def global_step(self) -> int:
        """Optimizer steps that updated parameters."""
        return self.trainer.global_step

    @property
    def val_loop(self) -> EvaluationLoop:
        """Validation within `fit`."""
        return EvaluationLoop(self.trainer, "val")


@dataclass(frozen=True)
class EvaluationLoop(Loop):
    """Batches of validation, test or prediction."""

    stage: str

    @property
    def max_batches(self) -> list[int | float]:
        """Batches of each loader."""
        return getattr(self.trainer, f"num_{self.stage}_batches")  # type: ignore[no-any-return]

    @property
    def _data_source(self) -> SimpleNamespace:
        """The answer to `is_defined()`: whether there are loaders, or a hook that makes some. gluonts asks for it."""
        return SimpleNamespace(is_defined=lambda: _has_loaders(self.trainer, self.stage))

    @property
    def num_dataloaders(self) -> int:
        """Number of loaders."""
        return len(self.max_batches)


def _has_loaders(trainer: Any, stage: str) -> bool:
    """True if loaders of this stage were passed to `fit`, or module or data module make them."""
    hook = f"{stage}_dataloader"
    owner = trainer.module if trainer.datamodule is None else trainer.datamodule
    return trainer.passed.get(stage) is not None or is_overridden(hook, owner)


def _set(trainer: Trainer, **options: Any) -> None:
    trainer.options = dataclasses.replace(trainer.options, **options)
