"""The progress of `core check`: a bar on a terminal, a line a test elsewhere. On standard error,
beside the result.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from core.cli import say, shown, styled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress as RichProgress

    from core_testing.cli.check_run import EventReceiver, Test

_COLORS = {"failed": "red", "skipped": "bright_black", "xfailed": "yellow"}


@contextlib.contextmanager
def make_progress() -> Iterator[EventReceiver]:
    """Make the progress display that suits standard error."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(bar)


class _Bar:
    """One bar; failures are lines above it."""

    def __init__(self, bar: RichProgress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=None)

    def collected(self, number: int) -> None:
        """Receive the number of tests that will run."""
        self._bar.update(self._task, total=number)

    def begin(self, name: str) -> None:
        """Show the test that begins."""
        self._bar.update(self._task, description=shown(name).replace("[", r"\["))

    def end(self, test: Test) -> None:
        """Show a test that has ended."""
        self._bar.advance(self._task)
        if test.outcome == "failed":
            self._bar.console.print(f"failed  {shown(test.name)}", style="red", markup=False)


class _Lines:
    """One line a test, when it has ended."""

    def __init__(self) -> None:
        self._number = self._ended = 0

    def collected(self, number: int) -> None:
        """Receive the number of tests that will run."""
        self._number = number

    def begin(self, name: str) -> None:
        """Do nothing: its line comes when it has ended."""

    def end(self, test: Test) -> None:
        """Show a test that has ended."""
        self._ended += 1
        width = len(str(self._number))
        outcome = styled(f"{test.outcome:<7}", fg=_COLORS.get(test.outcome, "green"))
        counted, name = (
            f"{self._ended:>{width}}/{self._number}  ",
            f"  {test.name}  {test.duration_s:.1f} s",
        )
        say(counted, outcome, name, err=True)
