"""Forked copies of a rank, such as a loader's workers, which are no ranks themselves."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class ForkedCopies:
    """Calls a function in each forked copy of this process, before a SIGTERM can come to the copy.

    Python loses what a signal handler raises while a fork's hooks run: a copy that is to end at
    once would go on.

    Args:
        forget: takes back what only a rank must do, such as its handlers of signals.
    """

    def __init__(self, forget: Callable[[], None]) -> None:
        self._forget = forget
        self._mask: set[int | signal.Signals] = set()
        os.register_at_fork(
            before=self._hold_back, after_in_parent=self._let_in, after_in_child=self._begin
        )

    def _hold_back(self) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def _let_in(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _begin(self) -> None:
        self._forget()
        self._let_in()
