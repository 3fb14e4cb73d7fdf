"""The progress of this process: marked by the loop that trains, read by the watch."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pulse:
    """A count of how far this rank has come. One a process: `pulse`.

    A step pays one store: `pulse.count += 1`. All else happens once a phase.

    Attributes:
        count: goes up whenever the rank has come forward.
        phase: what it does: `"set-up"`, `"step"`, `"validation"`, `"checkpoint"`, `"end of epoch"`, ...
        longest_s: by phase, the longest that one has taken which is over.
    """

    __slots__ = ("count", "longest_s", "phase")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a run."""
        self.count, self.phase = 0, "set-up"
        self.longest_s: dict[str, float] = {}


pulse = Pulse()
"""The pulse of this process."""


@contextmanager
def phase(name: str, *, has_steps: bool = False) -> Iterator[None]:
    """A context in which this rank does something else than training steps.

    Args:
        name: for the verdict.
        has_steps: what happens inside marks the pulse. Else the time that it takes as a whole is what is usual.
    """
    before, began_s = pulse.phase, time.monotonic()
    pulse.phase = name
    pulse.count += 1
    try:
        yield
        if not has_steps:
            pulse.longest_s[name] = max(pulse.longest_s.get(name, 0.0), time.monotonic() - began_s)
    finally:
        pulse.phase = before
        pulse.count += 1
