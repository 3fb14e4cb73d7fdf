"""The time for which a rank has come no further, and the two limits of that."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.watch.phases import Heartbeat

_TIMES_LONGEST = 2.0
_TIMES_AT_WORK = 10.0
_LONGEST_LOOK_S = 3.0
"""Seconds that count between two looks. More have passed where the whole process was held, which is
no standstill.
"""


class Standstill:
    """The time since a rank last made progress: by its heartbeat's count, another phase, or another
    collective.

    Looked at once a second, always by the same thread. It ends by two limits, which follow what the
    same phase has needed before, without the time in which the rank waited for others.
    """

    def __init__(self, heartbeat: Heartbeat, limit_s: float, end_after_s: float) -> None:
        self._heartbeat, self._limit_s = heartbeat, limit_s
        self._end_after_s = max(limit_s, end_after_s)
        self._longest_s: dict[str, float] = {}
        self._seen: tuple[int, str, int] = (heartbeat.count, heartbeat.phase, 0)
        self._moved_s = self._looked_s = time.monotonic()
        self._passed_s = self._waited_s = self._worked_s = 0.0

    @property
    def since_s(self) -> float:
        """Seconds since the rank made progress, as far as the watch has seen."""
        return self._looked_s - self._moved_s

    def look(self, num_collectives: int = 0) -> float:
        """Sample the heartbeat. Returns `since_s`, which is 0 if the rank has made progress since
        the last sample.

        Args:
            num_collectives: that the rank has begun: a loop that marks nothing comes forward by
                those.
        """
        now_s = time.monotonic()
        self._passed_s = min(now_s - self._looked_s, _LONGEST_LOOK_S)
        self._moved_s += now_s - self._looked_s - self._passed_s
        self._looked_s = now_s
        seen = self._heartbeat.count, self._heartbeat.phase, num_collectives
        if seen != self._seen:
            phase, own_s = self._seen[1], self.since_s - self._waited_s
            self._longest_s[phase] = max(self._longest_s.get(phase, 0.0), own_s)
            self._seen, self._moved_s, self._waited_s, self._worked_s = seen, now_s, 0.0, 0.0
        return self.since_s

    def note(self, *, is_waiting: bool, is_at_work: bool) -> None:
        """Note what the rank has done between the last two looks.

        Args:
            is_waiting: it waits for others, whose time isn't its own.
            is_at_work: it, its threads or its children compute, read or write; while it waits, data
                arrives.
        """
        if is_waiting:
            self._waited_s += self._passed_s
        if is_at_work:
            self._worked_s = self.since_s

    @property
    def warn_after_s(self) -> float:
        """Seconds after which a standstill is worth a warning."""
        return self._allowed_s(self._limit_s)

    @property
    def end_after_s(self) -> float:
        """Seconds after which it ends the run: later as long as the rank is at work."""
        return end_after(self._allowed_s(self._end_after_s), self._worked_s)

    def _allowed_s(self, limit_s: float) -> float:
        longest_s = self._longest_s.get(self._seen[1], 0.0)
        return limit_s if longest_s < limit_s else _TIMES_LONGEST * longest_s


def end_after(limit_s: float, worked_s: float) -> float:
    """Seconds after which a standstill ends the run, if the rank was last at work at `worked_s` of
    it.
    """
    return min(worked_s + limit_s, _TIMES_AT_WORK * limit_s)
