"""The counters and limits of a run, by the names that they have in Lightning's loops."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from core import Trainer
from core_lightning.utilities.model_helpers import is_overridden

_NONE_YET = (-1, -1)


def _limit(name: str, doc: str, *, none: int | None = 0) -> Any:
    """A limit that can be set; `none` is the option of the Trainer that None and -1 mean."""

    def get(self: Loop) -> int:
        value: int | None = getattr(self.trainer.options, name)
        if value is None:
            return -1
        return value

    def put(self: Loop, value: Any) -> None:
        if value in (None, -1):
            value = none
        self.trainer.options = dataclasses.replace(self.trainer.options, **{name: value})

    return property(get, put, doc=doc)


@dataclass(frozen=True)
class Loop:
    """One of a Trainer's loops. What is read of it is the run's; only limits can be set."""

    trainer: Trainer

    max_steps = _limit("max_steps", "The limit in optimizer steps; -1 for none.", none=-1)
    min_steps = _limit("min_steps", "Optimizer steps for which a stop waits.")


class FitLoop(Loop):
    """Epochs of training. A limit in epochs that is set counts from the next `fit` on, which goes
    on.
    """

    max_epochs = _limit("max_epochs", "The limit in epochs; -1 for none.", none=None)
    min_epochs = _limit("min_epochs", "Epochs for which a stop waits.")
    batch_idx = property(
        attrgetter("epoch_loop.batch_idx"), doc="Number of the batch that runs, in its epoch."
    )
    total_batch_idx = property(
        attrgetter("epoch_loop.total_batch_idx"), doc="Its number in all epochs."
    )
    max_batches = property(attrgetter("trainer.num_training_batches"), doc="Batches of an epoch.")

    @property
    def epoch_loop(self) -> EpochLoop:
        """The batches of an epoch."""
        return EpochLoop(self.trainer)

    @property
    def epoch_progress(self) -> SimpleNamespace:
        """Epochs that are `ready`, `started`, `processed` and `completed`."""
        trainer, progress = self.trainer, self.trainer.progress
        trains, done = trainer.is_running and trainer.stage == "fit", progress.epoch
        begun = done + (trains and (self.max_epochs < 0 or done < self.max_epochs))
        # the hooks at its end are running
        processed = done + (progress.epoch_is_ending or progress.epoch_is_over)
        counts = SimpleNamespace(ready=begun, started=begun, processed=processed, completed=done)
        return SimpleNamespace(total=counts, current=counts)


class EpochLoop(Loop):
    """Batches of a training epoch."""

    global_step = property(
        attrgetter("trainer.global_step"), doc="Optimizer steps that updated parameters."
    )
    _numbers = property(lambda self: vars(self.trainer).get("batch_numbers", _NONE_YET))
    batch_idx = property(
        lambda self: self._numbers[0], doc="Number of the batch that runs; -1 before the first one."
    )
    total_batch_idx = property(lambda self: self._numbers[1], doc="Its number in all epochs.")
    val_loop = property(
        lambda self: EvaluationLoop(self.trainer, "val"), doc="Validation within `fit`."
    )

    @property
    def batch_progress(self) -> SimpleNamespace:
        """Batches that are `processed`."""
        progress = self.trainer.progress
        return SimpleNamespace(
            total=SimpleNamespace(processed=progress.total_batches),
            current=SimpleNamespace(processed=progress.batch),
        )


@dataclass(frozen=True)
class EvaluationLoop(Loop):
    """Batches of validation, test or prediction."""

    stage: str

    max_batches = property(
        lambda self: getattr(self.trainer, f"num_{self.stage}_batches"),
        doc="Batches of each loader.",
    )
    num_dataloaders = property(lambda self: len(self.max_batches), doc="Number of loaders.")

    @property
    def _data_source(self) -> SimpleNamespace:
        """The answer to `is_defined()`: whether there are loaders, or a hook that makes some.
        gluonts asks for it.
        """
        return SimpleNamespace(is_defined=lambda: _has_loaders(self.trainer, self.stage))


def _has_loaders(trainer: Any, stage: str) -> bool:
    """True if loaders of this stage were passed to `fit`, or module or data module make them."""
    hook = f"{stage}_dataloader"
    owner = trainer.datamodule
    if owner is None:
        owner = trainer.module
    return trainer.passed.get(stage) is not None or is_overridden(hook, owner)
