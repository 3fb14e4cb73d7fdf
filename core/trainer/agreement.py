"""Whether training stops after a step, as all ranks see it: ranks that don't stop together wait for each other forever.

A signal, a clock or `trainer.should_stop` may speak on one rank alone. So they are heard at steps that all ranks know
beforehand: every so many batches, about twice a second, and before and after whatever isn't a step. An exchange after
each step would cost many times what the loop itself does. A process that is alone hears them at once.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import torch

from core.contract import Capability

if TYPE_CHECKING:
    from core.trainer.trainer import Trainer

_PERIOD_S = 0.5


class StopAgreement:
    """What a fit asks after its steps.

    Attributes:
        look_at: the batch of the running epoch after which to call `settle`; infinite for not at all.
        is_late: whether `max_time` is over, on any rank.
    """

    def __init__(self, trainer: Trainer) -> None:
        """All ranks, when training begins and its clock runs."""
        strategy = trainer.strategy
        self._trainer, self._guard = trainer, trainer.signals
        self._is_alone = strategy.world_size == 1 or Capability.COLLECTIVES not in strategy.capabilities
        max_time = trainer.options.max_time
        self._max_s = math.inf if max_time is None else max_time.total_seconds()
        self._pace = 1
        self._batch, self._settled_s = 0, time.monotonic()
        self.look_at = math.inf
        self.is_late = False

    def begin(self, batch: int) -> None:
        """All ranks. The loop goes on with steps after this batch of the epoch."""
        self._batch, self._settled_s = batch, time.monotonic()
        if not self._is_alone:
            self.look_at = batch + self._pace
            return
        self.look_at = math.inf
        if self._max_s < math.inf or self._trainer.should_stop or self._guard.signal is not None:
            self.wake()

    def wake(self) -> None:
        """Something may have to stop. A process that is alone looks after the next step."""
        if self._is_alone:
            self.look_at = -1

    def settle(self, batch: int) -> None:
        """All ranks, between two optimizer steps. Make everybody's wishes known.

        Args:
            batch: of the running epoch.

        Raises:
            Interrupted: somebody got a signal; raised on all ranks.
            KeyboardInterrupt: that signal was Ctrl-C.
        """
        number = self._guard.signal or 0
        self.is_late = self._trainer.progress.elapsed_s >= self._max_s
        if not self._is_alone:
            number = self._exchange(number, self._choose_pace(batch - self._batch))
            self.begin(batch)
        if number:
            raise self._guard.agree(number)

    def _exchange(self, number: int, pace: int) -> int:
        """The signal of any rank, 0 for none; the slowest rank's pace counts."""
        trainer, strategy = self._trainer, self._trainer.strategy
        wishes = [int(trainer.should_stop), int(self.is_late), number, -pace]
        agreed = strategy.reduce(torch.tensor(wishes, device=strategy.root_device), reduce_op="max").tolist()
        trainer.should_stop, self.is_late, self._pace = bool(agreed[0]), bool(agreed[1]), -int(agreed[3])
        return int(agreed[2])

    def _choose_pace(self, num_batches: int) -> int:
        elapsed_s = time.monotonic() - self._settled_s
        if num_batches < self._pace or elapsed_s <= 0:
            return self._pace
        return max(1, min(int(_PERIOD_S * num_batches / elapsed_s), 2 * num_batches))
