"""The profilers, with Lightning's arguments, and one that measures nothing."""

from __future__ import annotations

import sys
from typing import Any

from core import ConfigurationError, PathLike
from core.profilers import Profiler
from core_training.profilers import AdvancedProfiler as CoreAdvancedProfiler
from core_training.profilers import SimpleProfiler as CoreSimpleProfiler


class SimpleProfiler(CoreSimpleProfiler):
    """Counts and times each action; see `core.profilers.SimpleProfiler`.

    Args:
        extended: taken for Lightning's sake; the table always has the number of calls.
    """

    def __init__(
        self, dirpath: PathLike | None = None, filename: str | None = None, extended: bool = True
    ) -> None:
        super().__init__(dirpath, filename or "profile")


class AdvancedProfiler(CoreAdvancedProfiler):
    """Runs Python's own profiler in each action; see `core.profilers.AdvancedProfiler`.

    Args:
        line_count_restriction: functions that each table shows; 1.0 for all.
        dump_stats: must be False.
    """

    def __init__(
        self,
        dirpath: PathLike | None = None,
        filename: str | None = None,
        line_count_restriction: float = 1.0,
        dump_stats: bool = False,
    ) -> None:
        num_lines: Any = line_count_restriction
        if line_count_restriction == 1.0 and isinstance(line_count_restriction, float):
            num_lines = sys.maxsize
        if dump_stats or isinstance(num_lines, float):
            raise ConfigurationError(
                f"AdvancedProfiler({line_count_restriction=}, {dump_stats=}): core shows a number "
                "of functions, or all of them, and keeps no dump. Pass an int or 1.0, and "
                "dump_stats=False."
            )
        super().__init__(dirpath, filename or "profile", num_lines=num_lines)


class PassThroughProfiler(Profiler):
    """Measures nothing: for programs that have a profiler in any case."""

    def start(self, action: str) -> None:
        """Do nothing."""

    stop = start

    def summary(self) -> str:
        """Nothing."""
        return ""

    def teardown(self) -> None:
        """Write no report."""
