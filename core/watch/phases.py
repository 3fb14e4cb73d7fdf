"""The heartbeat of this process and its phases: marked by the training loop, read by the watchdog."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Heartbeat:
    """A counter of this rank's progress. There is one in each process: `heartbeat`.

    A step pays one store: `heartbeat.count += 1`. All else happens once a phase.

    Attributes:
        count: goes up whenever the rank makes progress.
        phase: what the rank does: `"set-up"`, `"step"`, `"validation"`, `"checkpoint"`, `"end of epoch"`, ...
    """

    __slots__ = ("count", "phase")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a run."""
        self.count, self.phase = 0, "set-up"


heartbeat = Heartbeat()
"""The heartbeat of this process."""


@contextmanager
def phase(name: str) -> Iterator[None]:
    """A context for work other than training steps.

    Args:
        name: of the phase, for the verdict.
    """
    before, heartbeat.phase = heartbeat.phase, name
    heartbeat.count += 1
    try:
        yield
    finally:
        heartbeat.phase = before
        heartbeat.count += 1
