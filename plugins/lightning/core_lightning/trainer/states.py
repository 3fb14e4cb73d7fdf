"""The states of a Trainer, as enums whose members equal the texts of `core.Trainer.state`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter


class TrainerStatus(StrEnum):
    """The status of a Trainer."""

    INITIALIZING = "initializing"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"

    stopped = property(
        lambda self: self in (self.FINISHED, self.INTERRUPTED), doc="True after its end, whichever."
    )


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
        if self in (self.VALIDATING, self.SANITY_CHECKING):
            return "val"
        return self.value


@dataclass
class TrainerState:
    """The activity of a Trainer."""

    status: TrainerStatus = TrainerStatus.INITIALIZING
    fn: TrainerFn | None = None
    stage: RunningStage | None = None

    finished = property(
        lambda self: self.status == TrainerStatus.FINISHED, doc="True after a normal end."
    )
    stopped = property(attrgetter("status.stopped"), doc="True after any end.")
