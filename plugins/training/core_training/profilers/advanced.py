"""A profiler of the functions that take the time of each action."""

from __future__ import annotations

import cProfile
import io
import pstats
from typing import TYPE_CHECKING

from core.contract import ConfigurationError
from core_training.profilers.profiler import Profiler

if TYPE_CHECKING:
    import os


class AdvancedProfiler(Profiler):
    """Runs Python's own profiler in each action, and writes its tables to a file:
    `Trainer(profiler="advanced")`.

    Python has one profiler at a time: what runs in an action within an action stands in the table
    of the inner one alone. It makes every Python call slower, by far more than a step of a small
    model takes.

    Args:
        dirpath: folder of the reports; by default that of the run's logger, or else
            `default_root_dir`.
        filename: begins their names: `fit-profile.txt`.
        num_lines: functions that each table shows, by cumulative time.
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str = "profile",
        *,
        num_lines: int = 20,
    ) -> None:
        if num_lines < 1:
            raise ConfigurationError(
                f"num_lines={num_lines}: expected a number of functions from 1."
            )
        super().__init__(dirpath, filename)
        self._num_lines = num_lines

    def _clear(self) -> None:
        self._profiles: dict[str, cProfile.Profile] = {}
        self._running: list[str] = []

    def start(self, action: str) -> None:
        """The action begins; the one around it pauses."""
        if self._running:
            self._profiles[self._running[-1]].disable()
        self._running.append(action)
        self._profiles.setdefault(action, cProfile.Profile()).enable()

    def stop(self, action: str) -> None:
        """The action ends, and with it those within it that an exception has left; the one around
        it goes on.
        """
        if action not in self._running:
            raise self._refuse_stop(action)
        self._profiles[self._running[-1]].disable()
        while self._running.pop() != action:
            pass
        if self._running:
            self._profiles[self._running[-1]].enable()

    def teardown(self) -> None:
        """All ranks. The stage is over: write the report."""
        if self._running:
            self.stop(self._running[0])
        super().teardown()

    def summary(self) -> str:
        """A table an action."""
        text = io.StringIO()
        for action, profile in self._profiles.items():
            text.write(f"Action {action}\n")
            statistics = pstats.Stats(profile, stream=text)
            statistics.sort_stats("cumulative").print_stats(self._num_lines)
        return text.getvalue()

    def describe(self) -> str:
        """A line with the path of the tables, which are too long for a terminal."""
        return f"Profiles of {len(self._profiles)} actions. Written to {self.report_path()}"

    def __getstate__(self) -> dict[str, object]:
        # Python's profiler can't go to another process; a stage begins with new ones anyway.
        return {**self.__dict__, "_profiles": {}, "_running": []}
