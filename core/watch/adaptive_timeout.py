"""The time for which a rank may stand still: learned from its own steps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.watch.progress import Pulse

_TIMES_LONGEST = 10.0
_TIMES_NEW = 10.0
_TIMES_AT_WORK = 10.0
_NUM_KNOWN = 3
"""Marks after which a phase isn't new any more: the first steps compile."""
_PART_SURE = 3.0
_LOOKS_S = 2.0
"""Seconds in which there is a look for certain."""
_LATE_S = 3.0
"""Seconds after which a look comes late: the whole process, or its machine, was held."""


class AdaptiveTimeout:
    """Notes when the pulse moves. Asked about once a second, always by the same thread."""

    def __init__(self, pulse: Pulse, limit_s: float) -> None:
        self._pulse, self._limit_s = pulse, limit_s
        self._longest_s: dict[str, float] = {}
        self._num_marks: dict[str, int] = {}
        self._seen = (pulse.count, pulse.phase)
        self._num_collectives, self._waited_s = 0, 0.0
        self._moved_s = self._looked_s = time.monotonic()

    def look(self, num_collectives: int = 0, *, is_waiting: bool = False) -> float:
        """Seconds since the rank came forward, as far as the watch has seen.

        Args:
            num_collectives: that the rank has begun: a loop that marks nothing comes forward by those.
            is_waiting: the rank waits for others, whose time isn't its own.
        """
        now_s, (count, phase) = time.monotonic(), self._seen
        # Time in which no process could run doesn't count.
        held_s = now_s - self._looked_s
        if held_s > _LATE_S:
            self._moved_s += held_s
        elif is_waiting:
            self._waited_s += held_s
        self._looked_s = now_s
        if (self._pulse.count, self._pulse.phase) != self._seen:
            took_s, num_marks = now_s - self._moved_s - self._waited_s, max(1, self._pulse.count - count)
            # Of several marks between two looks, each took its part; a long one is seen as it lasts.
            took_s = took_s if took_s > _LOOKS_S else took_s / num_marks
            self._longest_s[phase] = max(self._longest_s.get(phase, 0.0), took_s)
            self._seen = self._pulse.count, self._pulse.phase
            if self._seen[1] == phase:
                self._num_marks[phase] = self._num_marks.get(phase, 0) + self._seen[0] - count
            self._moved_s, self._waited_s = now_s, 0.0
        elif num_collectives != self._num_collectives:
            self._moved_s, self._waited_s = now_s, 0.0
        self._num_collectives = num_collectives
        return now_s - self._moved_s

    def allowed_s(self, *, is_at_work: bool) -> float:
        """Seconds for which the rank may stand still in its phase."""
        phase = self._seen[1]
        longest_s = max(self._longest_s.get(phase, 0.0), self._pulse.longest_s.get(phase, 0.0))
        is_new = phase not in self._pulse.longest_s and self._num_marks.get(phase, 0) < _NUM_KNOWN
        allowed_s = max(self._limit_s, _TIMES_LONGEST * longest_s) * (_TIMES_NEW if is_new else 1.0)
        return allowed_s * (_TIMES_AT_WORK if is_at_work else 1.0)

    def least_s(self, *, is_moving: bool) -> float:
        """Seconds for which it may stand still where it can't come forward by itself: data may be on its way."""
        return self._limit_s * (_TIMES_AT_WORK if is_moving else 1 / _PART_SURE)
