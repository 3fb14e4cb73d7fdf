"""The counters of a fit's progress."""

from __future__ import annotations

import time
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
        epoch_is_trained: the running epoch's batches are all consumed, a validation may follow.
        epoch_is_ending: the first hooks of the epoch's end are running, which is no time to save.
        epoch_is_over: the last hooks of the epoch are running; what is saved now goes on with the
            next one.
        window_start: the batch with which the running accumulation window begins.
        is_recut: the running epoch goes on with other ranks, or batches of another size, than it
            began with.
        validated_batch: the batch after which the newest validation of the running epoch was made,
            -1 for none.
    """

    epoch: int = 0
    batch: int = 0
    global_step: int = 0
    total_batches: int = 0
    epoch_is_trained: bool = False
    epoch_is_ending: bool = False
    epoch_is_over: bool = False
    is_recut: bool = False
    window_start: int = 0
    validated_batch: int = -1
    _earlier_s: float = 0.0
    _began_s: float | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds of training, over all restarts."""
        if self._began_s is None:
            return self._earlier_s
        return self._earlier_s + (time.monotonic() - self._began_s)

    def start_clock(self) -> None:
        """Training begins, or goes on."""
        self.stop_clock()
        self._began_s = time.monotonic()

    def stop_clock(self) -> None:
        """Idempotent. Training pauses."""
        self._earlier_s, self._began_s = self.elapsed_s, None

    @property
    def is_validated(self) -> bool:
        """True if the validation that may be due at this batch has been made."""
        return self.validated_batch == self.batch

    def end_epoch(self) -> None:
        """Go on with the next epoch."""
        self.epoch += 1
        self.restart_epoch()

    def restart_epoch(self) -> None:
        """Go on with the running epoch's first batch."""
        self.batch = self.window_start = 0
        self.validated_batch = -1
        self.epoch_is_trained = self.epoch_is_ending = self.epoch_is_over = self.is_recut = False

    def go_on_at(self, batch: int, *, is_recut: bool) -> None:
        """A resumed epoch goes on after so many batches of this rank."""
        if self.is_validated:
            self.validated_batch = batch
        self.batch = self.window_start = batch
        self.is_recut = is_recut

    def state_dict(self) -> dict[str, Any]:
        """The position from which a run that loads this goes on, and whether an epoch's last hooks
        were running.
        """
        return {
            "epoch": self.epoch + self.epoch_is_over,
            "epoch_is_over": self.epoch_is_over,
            "batch": 0 if self.epoch_is_over else self.batch,
            "is_validated": self.is_validated and not self.epoch_is_over,
            "global_step": self.global_step,
            "total_batches": self.total_batches,
            "elapsed_s": self.elapsed_s,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.restart_epoch()
        self.epoch, self.batch = state["epoch"], state["batch"]
        self.global_step, self.total_batches = state["global_step"], state["total_batches"]
        self.window_start = self.batch
        if state["is_validated"]:
            self.validated_batch = self.batch
        if self._began_s is None:  # a clock that runs goes on
            self._earlier_s = state["elapsed_s"]
