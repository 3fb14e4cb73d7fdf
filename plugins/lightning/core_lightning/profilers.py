"""The profiler that measures nothing."""

from __future__ import annotations

from core.profilers import Profiler


class PassThroughProfiler(Profiler):
    """Measures nothing: for programs that have a profiler in any case."""

    def start(self, action: str) -> None:
        """Do nothing."""

    def stop(self, action: str) -> None:
        """Do nothing."""

    def summary(self) -> str:
        """Nothing."""
        return ""

    def teardown(self) -> None:
        """Write no report."""
