"""The rhythm in which ranks exchange what one of them alone may know."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract import Strategy

_PERIOD_S = 0.5


class Pace:
    """A number of steps between two exchanges, such that these come about twice a second.

    An exchange after each step would cost many times as much as the step's own bookkeeping. Each rank proposes a
    number by its own clock, and all take the same one.

    Attributes:
        num_steps: that the ranks have agreed on.
    """

    def __init__(self) -> None:
        self.num_steps = 1
        self._began_s: float | None = None

    def begin(self) -> None:
        """Start the clock: steps are made from here on."""
        self._began_s = time.monotonic()

    def propose(self, num_made: int) -> int:
        """The number of steps that fits, after so many since `begin`; twice as many as these at most."""
        elapsed_s = 0.0 if self._began_s is None else time.monotonic() - self._began_s
        if num_made < self.num_steps or elapsed_s <= 0:
            return self.num_steps
        return max(1, min(int(_PERIOD_S * num_made / elapsed_s), 2 * num_made))


class PacedQuestion:
    """A question that rank 0 answers by its clock. Asked on all ranks in every step, exchanged about twice a second."""

    def __init__(self) -> None:
        self._pace, self._num_steps = Pace(), 0

    def ask(self, strategy: Strategy, decide: Callable[[], bool]) -> bool:
        """All ranks, in every step. Rank 0's answer, if it is due; until then no.

        Args:
            strategy: connects the ranks.
            decide: called on all ranks when the question is due; rank 0's answer counts.
        """
        self._num_steps += 1
        if self._num_steps < self._pace.num_steps:
            return False
        answer, self._pace.num_steps = strategy.broadcast((decide(), self._pace.propose(self._num_steps)))
        self._num_steps = 0
        self._pace.begin()
        return bool(answer)
