"""The interval at which ranks exchange state that only one of them may have, such as a signal."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract import Strategy

_PERIOD_S = 0.5


class ExchangeInterval:
    """The number of steps between two exchanges, adapted so that there are about two a second.

    An exchange after each step would cost many times as much as the step's own bookkeeping. Each
    rank proposes a number by its own clock, and all ranks use the same one.

    Attributes:
        num_steps: that the ranks have agreed on.
    """

    def __init__(self) -> None:
        self.num_steps = 1
        self._began_s = math.inf

    def begin(self) -> None:
        """Start the clock, before the first step."""
        self._began_s = time.monotonic()

    def propose(self, num_made: int) -> int:
        """The number of steps that fits, after so many since `begin`; twice as many as these at
        most.
        """
        elapsed_s = time.monotonic() - self._began_s
        if num_made < self.num_steps or elapsed_s <= 0:
            return self.num_steps
        return max(1, min(int(_PERIOD_S * num_made / elapsed_s), 2 * num_made))


class PeriodicVote:
    """A vote whose result is rank 0's answer. Called on all ranks in every step, broadcast about
    twice a second.
    """

    def __init__(self) -> None:
        self._interval = ExchangeInterval()
        self._num_steps = 0

    def ask(self, strategy: Strategy, decide: Callable[[], bool]) -> bool:
        """All ranks, in every step. Rank 0's answer, if it is due; until then no.

        Args:
            strategy: connects the ranks.
            decide: called on all ranks when the question is due; rank 0's answer counts.
        """
        self._num_steps += 1
        if self._num_steps < self._interval.num_steps:
            return False
        answer, self._interval.num_steps = strategy.broadcast(
            (decide(), self._interval.propose(self._num_steps))
        )
        self._num_steps = 0
        self._interval.begin()
        return bool(answer)
