"""The times at which validation runs within `fit`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from core_training.signals.exchange_interval import PeriodicVote
from core_training.stage_data.validation_interval import batches_between

if TYPE_CHECKING:
    from collections.abc import Callable

    from core_training.run import Run


class ValidationSchedule:
    """Answers whether a validation is due. Asked on all ranks, which get the same answer.

    Batches are counted within the epoch, or with `check_val_every_n_epoch=None` over all epochs;
    time is rank 0's, from the end of the validation before, and is asked for at intervals.
    """

    def __init__(self, run: Run) -> None:
        self._options, self._progress = run.options, run.progress
        self._loaders, self._strategy = run.loaders, run.strategy
        self._question = PeriodicVote()
        self._ended_s = time.monotonic()
        self._last_at = -1
        if run.progress.is_validated:
            self._last_at = run.progress.total_batches

    def note(self) -> None:
        """A validation has just ended."""
        self._ended_s, self._last_at = time.monotonic(), self._progress.total_batches

    def begin_epoch(self) -> Callable[[int], bool] | None:
        """The question to ask after each batch, with its number from 1; None if nothing is due
        within this epoch.
        """
        self._interval, self._before = batches_between(self._options, self._loaders), 0
        if self._options.check_val_every_n_epoch is None:  # batches of earlier epochs count too
            self._before = self._progress.total_batches - self._progress.batch
        if not self._counts():
            return None
        if self._options.val_check_time is not None:
            return self._is_time
        return self._is_at_interval if self._interval else None

    def is_due_after_epoch(self, *, is_cut: bool = False) -> bool:
        """True if a validation is due after all batches of the epoch, or where it is cut, and
        hasn't just been made.
        """
        if not self._counts() or self._last_at == self._progress.total_batches:
            return False
        if is_cut:
            return True
        if self._options.val_check_time is not None:
            return bool(self._strategy.broadcast(self._is_late_here()))
        return not self._interval or (self._before + self._progress.batch) % self._interval == 0

    # After the epoch's last batch nothing is due by these two: `is_due_after_epoch` decides then.

    def _is_time(self, batch: int) -> bool:
        is_late = self._question.ask(self._strategy, self._is_late_here)
        return is_late and batch < self._loaders.num_train_batches

    def _is_at_interval(self, batch: int) -> bool:
        is_due = (self._before + batch) % self._interval == 0
        return is_due and batch < self._loaders.num_train_batches

    def _counts(self) -> bool:
        every = self._options.check_val_every_n_epoch
        is_one = every is None or (self._progress.epoch + 1) % every == 0
        return bool(self._loaders.validation) and is_one

    def _is_late_here(self) -> bool:
        duration = self._options.val_check_time
        return duration is not None and time.monotonic() - self._ended_s >= duration.total_seconds()
