"""The time that a rank of a test has."""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import Any, NoReturn

_LAST_WORDS_S = 5


def end_after(timeout_s: float) -> None:
    """Raise in this process when its time is over, and end it if it doesn't hear that in native
    code.
    """

    def raise_timeout(signum: int, frame: Any) -> NoReturn:
        test = os.environ.get("PYTEST_CURRENT_TEST", "this test").removesuffix(" (call)")
        raise TimeoutError(
            f"The ranks of {test} have not come to their end within {timeout_s:g} s."
        )

    # Two alarms: Python runs a signal's handler between two bytecodes only, so a rank that hangs in
    # a collective never comes to it. The second writes where it hangs, from a thread of C, and ends
    # the process.
    signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    faulthandler.dump_traceback_later(timeout_s + _LAST_WORDS_S, exit=True, file=2)


def end_never() -> None:
    """Undo `end_after`."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()
