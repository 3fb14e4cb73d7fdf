"""The states of a Trainer, as enums whose members equal the texts of `core.Trainer.state`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TrainerStatus(StrEnum):
    """The status of a Trainer."""

    INITIALIZING = "initializing"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"

    @property
    def stopped(self) -> bool:
        """True after its end, whichever."""
        return self in (self.FINISHED, self.INTERRUPTED)


class TrainerFn(StrEnum):
    """The method of the Trainer that the user has called."""

    FITTING = "fit"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"


class RunningStage(StrEnum):
    """The stage within that method."""

    TRAINING = "train"
    SANITY_CHECKING = "sanity_check"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"

    @property
    def evaluating(self) -> bool:
        """True for validation, test and the sanity check."""
        return self in (self.VALIDATING, self.TESTING, self.SANITY_CHECKING)

    @property
    def dataloader_prefix(self) -> str:
        """The stage in the names of loaders."""
        return "val" if self in (self.VALIDATING, self.SANITY_CHECKING) else self.value


@dataclass
class TrainerState:
    """The activity of a Trainer."""

    status: TrainerStatus = TrainerStatus.INITIALIZING
    fn: TrainerFn | None = None
    stage: RunningStage | None = None

    @property
    def finished(self) -> bool:
        """True after a normal end."""
        return self.status == TrainerStatus.FINISHED

    @property
    def stopped(self) -> bool:
        """True after any end."""
        return self.status.stopped
