"""The heartbeat of this process and its phases: marked by the training loop, read by the
watchdog.
"""

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
        phase: what the rank does: `"set-up"`, `"step"`, `"validation"`, `"checkpoint"`,
            `"end of epoch"`, ...
        line: the user's line that asked for this phase; empty where it is on the stack.
    """

    __slots__ = ("count", "line", "phase")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a run."""
        self.count, self.phase, self.line = 0, "set-up", ""

    @staticmethod
    def callers_line() -> str:
        """The user's line that has called core; empty if there is none."""
        from core.watch.thread_sampler import callers_line  # which imports much that few need

        return callers_line()


heartbeat = Heartbeat()
"""The heartbeat of this process."""


@contextmanager
def phase(name: str, *, line: str = "") -> Iterator[None]:
    """A context for work other than training steps.

    Args:
        name: of the phase, for the verdict.
        line: the user's line that asked for it, where that has returned since.
    """
    before = heartbeat.phase, heartbeat.line
    heartbeat.phase, heartbeat.line = name, line
    heartbeat.count += 1
    try:
        yield
    finally:
        heartbeat.phase, heartbeat.line = before
        heartbeat.count += 1
