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
        self._last_at = run.progress.total_batches if run.progress.is_validated else -1

    def note(self) -> None:
        """A validation has just ended."""
        self._ended_s, self._last_at = time.monotonic(), self._progress.total_batches

    def begin_epoch(self) -> Callable[[int], bool] | None:
        """The question to ask after each batch, with its number from 1; None if nothing is due
        within this epoch.
        """
        options, progress = self._options, self._progress
        # After the epoch's last batch nothing is due here: `is_due_after_epoch` decides then.
        interval, num_batches = (
            batches_between(options, self._loaders),
            self._loaders.num_train_batches,
        )
        if not self._counts(progress.epoch):
            return None
        if options.val_check_time is not None:
            return lambda batch: (
                self._question.ask(self._strategy, self._is_late_here) and batch < num_batches
            )
        if interval == 0:
            return None
        if options.check_val_every_n_epoch is None:
            return lambda batch: progress.total_batches % interval == 0 and batch < num_batches
        return lambda batch: batch % interval == 0 and batch < num_batches

    def is_due_after_epoch(self, *, is_cut: bool = False) -> bool:
        """True if a validation is due after all batches of the epoch, or where it is cut, and
        hasn't just been made.
        """
        options, progress = self._options, self._progress
        if not self._counts(progress.epoch) or self._last_at == progress.total_batches:
            return False
        if is_cut or options.val_check_time is not None:
            return is_cut or bool(self._strategy.broadcast(self._is_late_here()))
        interval = batches_between(options, self._loaders)
        if options.check_val_every_n_epoch is None:
            return progress.total_batches % interval == 0
        return interval == 0 or progress.batch % interval == 0

    def _counts(self, epoch: int) -> bool:
        every = self._options.check_val_every_n_epoch
        return bool(self._loaders.validation) and (every is None or (epoch + 1) % every == 0)

    def _is_late_here(self) -> bool:
        duration = self._options.val_check_time
        return duration is not None and time.monotonic() - self._ended_s >= duration.total_seconds()
