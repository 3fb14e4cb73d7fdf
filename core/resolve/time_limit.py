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

_BUSY = 0.01
"""Share of the time for which a process that works computes at least, on a machine however busy."""
_OWN_BYTES = 4096
"""Bytes that looking at the process reads itself, and may."""


class TimeIsUp(BaseException):
    """Raised in the middle of code that takes too long. Not an Exception, so that no
    `except Exception` goes on.
    """


@contextlib.contextmanager
def time_limit(limit_s: float, idle_s: float | None = None) -> Iterator[None]:
    """A context that is left by an exception when its time is up, by the system's alarm: no thread
    or process is made.

    There is no limit outside of the main thread, where Python doesn't handle signals, nor where an
    alarm of the user's own would come first. Code that waits in native code, and doesn't hear of
    signals, goes on until it returns.

    Args:
        limit_s: seconds for all.
        idle_s: seconds for which this process may do nothing at all: it computes less than a
            hundredth of the time, and reads nothing. The import of a large module from a cold disk
            or a busy machine isn't idle so.

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

    work, at_work_s = _work_done(), time.monotonic()

    def look(number: int, frame: object) -> None:
        nonlocal at_work_s, work
        now_s, done = time.monotonic(), _work_done()
        if now_s - began_s >= limit_s:
            raise TimeIsUp(f"it did not end within {limit_s:g} s")
        if done[0] - work[0] > _BUSY * (now_s - at_work_s) or done[1] > work[1] + _OWN_BYTES:
            at_work_s, work = now_s, done
        elif idle_s is not None and now_s - at_work_s >= idle_s:
            raise TimeIsUp(f"it did nothing for {idle_s:g} s")

    handler = signal.signal(signal.SIGALRM, look)
    first_s = limit_s if idle_s is None else min(limit_s, idle_s, _AGAIN_S)
    began_s = time.monotonic()  # here, as an alarm of the user's own ran until now
    before = signal.setitimer(signal.ITIMER_REAL, first_s, min(_AGAIN_S, first_s))
    try:
        yield
    finally:
        # The alarm first: with the old handler in place, one that still comes would end the
        # process.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        # An alarm of the user's own goes on with the time that it has left.
        if before[0]:
            signal.setitimer(
                signal.ITIMER_REAL, max(before[0] - (time.monotonic() - began_s), 0.001), before[1]
            )


def _work_done() -> tuple[float, int]:
    """Seconds that this process has computed, and bytes that it has read."""
    num_bytes = 0
    with contextlib.suppress(OSError, ValueError), open("/proc/self/io", "rb") as file:
        num_bytes = sum(
            int(line.split()[1]) for line in file if line.startswith((b"rchar:", b"read_bytes:"))
        )
    return time.process_time(), num_bytes
