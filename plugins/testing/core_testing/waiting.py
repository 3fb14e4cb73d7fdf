"""Waits of tests, whose limits grow with how slow the machine is.

    wait_until(lambda: path.exists() and path.read_text(), "the rank's file")
    program.wait(60 * slowness())

A machine of a tenth of the speed, or one on which twenty processes want two cores, gets that much
more time.
"""

from __future__ import annotations

import functools
import os
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    Value = TypeVar("Value")

_STEPS = 100_000
_STEPS_S = 0.004  # of one core of 2024
_PAUSE_S = 0.02


def wait_until(read: Callable[[], Value], what: str, *, timeout_s: float = 60) -> Value:
    """Poll until `read` gives something true.

    Args:
        read: called 50 times a second.
        what: a noun for the error: what is waited for.
        timeout_s: in seconds of a fast and idle machine (`slowness`).

    Returns:
        What `read` gave.

    Raises:
        AssertionError: it gave nothing true in time; with what it gave last.
    """
    start = time.monotonic()
    while True:
        seen = read()
        if seen:
            return seen
        waited = time.monotonic() - start
        # Asked only then: others may have begun to use the machine since.
        if waited > timeout_s and waited > timeout_s * slowness():
            raise AssertionError(
                f"No {what} after {waited:.0f} s; the last that was seen: {seen!r}"
            )
        time.sleep(_PAUSE_S)


def slowness() -> float:
    """How many times longer work takes here than on a fast and idle machine, by its speed and its
    load; at least 1.
    """
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return _slowness_of_core() * max(1.0, load)


@functools.cache
def _slowness_of_core() -> float:
    start = time.thread_time()
    sum(range(_STEPS))
    sum(number * number for number in range(_STEPS))
    return max(1.0, (time.thread_time() - start) / _STEPS_S)
