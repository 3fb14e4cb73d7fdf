"""The rhythm in which ranks exchange what one of them alone may know."""

from __future__ import annotations

import time

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
