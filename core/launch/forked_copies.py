"""Forked copies of a rank, such as a loader's workers, which are no ranks themselves."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def call_in_copies(forget: Callable[[], None]) -> None:
    """Call a function in each forked copy of this process, before a SIGTERM can come to the copy.

    Python loses what a signal handler raises while a fork's hooks run: a copy that is to end at
    once would go on.

    Args:
        forget: takes back what only a rank must do, such as its handlers of signals.
    """

    def begin() -> None:
        forget()
        _let_in()

    os.register_at_fork(before=_hold_back, after_in_parent=_let_in, after_in_child=begin)


def _hold_back() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _let_in() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
