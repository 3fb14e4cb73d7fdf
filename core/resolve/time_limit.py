"""A time limit for foreign code in this thread."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_AGAIN_S = 1.0
"""Seconds that code may go on after it has caught the first exception, until the next one."""


class TimeIsUp(BaseException):
    """Raised in the middle of code that takes too long. Not an Exception, so that no
    `except Exception` goes on.
    """


@contextlib.contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """A context that is left by an exception when its time is up, by the system's alarm: no thread
    or process is made.

    There is no limit outside of the main thread, where Python doesn't handle signals, nor where an
    alarm of the user's own would come first. Code that waits in native code, and doesn't hear of
    signals, goes on until it returns.

    Args:
        limit_s: seconds for all.

    Raises:
        TimeIsUp: inside the context.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if (
        not in_main_thread
        or not hasattr(signal, "setitimer")
        or 0 < signal.getitimer(signal.ITIMER_REAL)[0] < limit_s
    ):
        yield
        return

    def end(number: int, frame: object) -> None:
        raise TimeIsUp(f"it did not end within {limit_s:g} s")

    handler = signal.signal(signal.SIGALRM, end)
    began_s = time.monotonic()  # here, as an alarm of the user's own ran until now
    before = signal.setitimer(signal.ITIMER_REAL, limit_s, _AGAIN_S)
    try:
        yield
    finally:
        # The alarm first: with the old handler in place, one that still comes would end the
        # process.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)
        # An alarm of the user's own goes on with the time that it has left.
        if before[0]:
            signal.setitimer(
                signal.ITIMER_REAL, max(before[0] - (time.monotonic() - began_s), 0.001), before[1]
            )
