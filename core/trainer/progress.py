"""How far a fit has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Progress:
    """Counters of a fit, saved with every checkpoint.

    Attributes:
        epoch: number of the running epoch, from 0.
        batch: batches of the running epoch that were consumed on this rank.
        global_step: optimizer steps that updated parameters.
        total_batches: batches of all epochs that were consumed on this rank.
        elapsed_s: seconds of training, over all restarts.
        epoch_is_over: the last hooks of the epoch are running; what is saved now goes on with the next one.
    """

    epoch: int = 0
    batch: int = 0
    global_step: int = 0
    total_batches: int = 0
    elapsed_s: float = 0.0
    epoch_is_over: bool = False

    def state_dict(self) -> dict[str, Any]:
        """Where a run that reads this goes on."""
        return {
            "epoch": self.epoch + self.epoch_is_over,
            "batch": 0 if self.epoch_is_over else self.batch,
            "global_step": self.global_step,
            "total_batches": self.total_batches,
            "elapsed_s": self.elapsed_s,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        for name, value in state.items():
            setattr(self, name, value)
