"""The progress of this process: marked by the loop that trains, read by the watch."""

from __future__ import annotations

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
    """

    __slots__ = ("count", "phase")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a run."""
        self.count, self.phase = 0, "set-up"


pulse = Pulse()
"""The pulse of this process."""


@contextmanager
def phase(name: str) -> Iterator[None]:
    """A context in which this rank does something else than training steps.

    Args:
        name: for the verdict.
    """
    before, pulse.phase = pulse.phase, name
    pulse.count += 1
    try:
        yield
    finally:
        pulse.phase = before
        pulse.count += 1
