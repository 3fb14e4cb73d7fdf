"""The ranks' agreement to stop after a step: ranks that don't stop together wait for each other forever.

A signal, a clock or `trainer.should_stop` may ask one rank alone to stop. The ranks exchange these requests at steps
that all of them know beforehand: every so many batches, about twice a second, and before and after all that isn't a
step. A single process reacts at once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from core.trainer.signals.exchange_interval import ExchangeInterval

if TYPE_CHECKING:
    from core.trainer.run import Run


class StopAgreement:
    """Decides after the steps of a fit if it must stop.

    Attributes:
        look_at: the batch of the running epoch after which to call `settle`; infinite for not at all.
        is_late: True once `max_time` is over on any rank.
    """

    def __init__(self, run: Run) -> None:
        """All ranks, when training begins and its clock runs."""
        self._run, self._guard = run, run.signals
        self._is_alone = not run.session.has_peers
        max_time = run.options.max_time
        self._max_s = math.inf if max_time is None else max_time.total_seconds()
        self._interval, self._batch = ExchangeInterval(), 0
        self.look_at = math.inf
        self.is_late = False

    def begin(self, batch: int) -> None:
        """All ranks. The loop goes on with steps after this batch of the epoch."""
        self._batch = batch
        if not self._is_alone:
            self._interval.begin()
            self.look_at = batch + self._interval.num_steps
            return
        self.look_at = math.inf
        if self._max_s < math.inf or self._run.should_stop or self._guard.signal is not None:
            self.wake()

    def wake(self) -> None:
        """Note that a stop may be due. A single process looks after the next step."""
        if self._is_alone:
            self.look_at = -1

    def settle(self, batch: int) -> None:
        """All ranks, between two optimizer steps. Exchange the requests to stop.

        Args:
            batch: of the running epoch.

        Raises:
            Interrupted: a rank got a signal; raised on all ranks.
            KeyboardInterrupt: that signal was Ctrl-C.
        """
        number = self._guard.signal or 0
        self.is_late = self._run.progress.elapsed_s >= self._max_s
        if not self._is_alone:
            number = self._exchange(number, self._interval.propose(batch - self._batch))
            self.begin(batch)
        if number:
            raise self._guard.agree(number)

    def _exchange(self, number: int, num_steps: int) -> int:
        """The signal of any rank, 0 for none; the slowest rank's pace counts."""
        run, strategy = self._run, self._run.strategy
        # The largest of each. Of the negative paces that is the slowest rank's.
        wishes = [int(run.should_stop), int(self.is_late), number, -num_steps]
        agreed = strategy.reduce(torch.tensor(wishes, device=strategy.root_device), reduce_op="max").tolist()
        run.should_stop, self.is_late, self._interval.num_steps = bool(agreed[0]), bool(agreed[1]), -int(agreed[3])
        return int(agreed[2])
