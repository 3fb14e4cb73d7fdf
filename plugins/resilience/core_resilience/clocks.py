"""The kinds of time in which phases of a step are measured."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """A kind of time."""

    def mark(self) -> Any:
        """This moment."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two moments."""


class WallClock:
    """Time as it passes."""

    mark = staticmethod(time.perf_counter)

    def seconds(self, begin: float, end: float) -> float:
        """Seconds between two moments."""
        return end - begin


class ThreadClock(WallClock):
    """Time in which this thread computes; where it waits for anything, none passes."""

    mark = staticmethod(time.thread_time)


class DeviceClock:
    """Time of the work that is queued for a GPU of CUDA's or ROCm's, in its current stream."""

    def mark(self) -> torch.cuda.Event:
        """A moment in the queue."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds between two moments. Waits until the later one has come."""
        end.synchronize()
        passed_ms: float = begin.elapsed_time(end)
        return passed_ms / 1000
