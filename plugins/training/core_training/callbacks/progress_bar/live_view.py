"""Bars that are redrawn, by rich, on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text

from core_training.callbacks.progress_bar.view import ProgressTask, View, describe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console
    from rich.progress import ProgressColumn, Task, TaskID

_BAR_WIDTH = 20
_ECHO_WIDTH = 3
"""Room for the `^C` that a terminal writes behind a bar. If it went to the next line, the bar
wouldn't be cleared.
"""


class LiveView(View):
    """One bar for each piece of work that is going on, under the lines that stay.

    While it is open, what others print to standard output or error appears above the bars.
    """

    def __init__(self, console: Console, interval_s: float) -> None:
        self.interval_s = interval_s
        self._console = console
        self._tasks: dict[int, TaskID] = {}
        self._progress = _Bars(
            _text("{task.description}", style="bold"),
            BarColumn(_BAR_WIDTH),
            _text("{task.fields[position]}"),
            _text("{task.fields[speed]}", style="cyan"),
            _text("{task.fields[times]}", style="dim"),
            _text("{task.fields[metrics]}", ratio=1),
            console=console,
            # a thread that draws would compete with training for the interpreter
            auto_refresh=False,
            transient=True,
            expand=True,
        )

    def begin(self, task: ProgressTask) -> None:
        """Add its bar."""
        if not self._tasks:
            self._start()
        # Of an unknown length, infinite, the bar stays empty.
        self._tasks[id(task)] = self._progress.add_task(
            task.name, total=task.total, **describe(task)
        )
        self._draw()

    def update(self, task: ProgressTask) -> None:
        """Redraw."""
        self._progress.update(self._tasks[id(task)], completed=task.done, **describe(task))
        self._draw()

    def end(self, task: ProgressTask) -> None:
        """Remove its bar; after the last one, the screen is free."""
        self._progress.remove_task(self._tasks.pop(id(task)))
        self._draw()
        if not self._tasks:
            self._stop()

    def write(self, line: str, *, is_header: bool = False) -> None:
        """A line above the bars."""
        text = Text(line)
        if is_header:
            text.stylize("bold")
        self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        """Remove all bars."""
        for task in self._tasks.values():
            self._progress.remove_task(task)
        self._tasks = {}
        self._stop()

    def _start(self) -> None:
        self._progress.start()

    def _draw(self) -> None:
        self._progress.refresh()

    def _stop(self) -> None:
        self._progress.stop()


class _Bars(Progress):
    def __init__(self, *columns: ProgressColumn, console: Console, **options: Any) -> None:
        self._console = console  # the base class asks for the table before it has its own
        super().__init__(*columns, console=console, **options)

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        table = super().make_tasks_table(tasks)
        table.width = max(1, self._console.width - _ECHO_WIDTH)
        return table


def _text(template: str, *, style: str = "none", ratio: int | None = None) -> TextColumn:
    column = Column(no_wrap=True, overflow="ellipsis", ratio=ratio)
    return TextColumn(template, style=style, markup=False, table_column=column)
