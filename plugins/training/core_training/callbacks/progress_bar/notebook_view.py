"""Bars that are redrawn in a notebook."""

from __future__ import annotations

from typing import Any

from core_training.callbacks.progress_bar.live_view import LiveView


class NotebookView(LiveView):
    """The bars of `LiveView`, in one output of the cell that is updated in place; lines follow
    below it.

    By IPython's own display, which every front end knows: rich's takes ipywidgets, and loses lines
    between the bars.
    """

    _output: Any = None

    def write(self, line: str, *, is_header: bool = False) -> None:
        """A line below the bars."""
        print(line)  # noqa: T201  # this is the cell's output

    def _start(self) -> None:
        """Do nothing: the output is made for the first bar."""

    def _draw(self) -> None:
        if not self._tasks:
            return
        bars = self._progress.make_tasks_table(self._progress.tasks)
        if self._output is None:
            from IPython.display import display  # there in a notebook, nowhere else needed

            self._output = display(bars, display_id=True)
        else:
            self._output.update(bars)

    def _stop(self) -> None:
        """Leave nothing of the bars: an output of no text, which takes no room below the cell."""
        if self._output is not None:
            self._output.update({"text/plain": "", "text/html": ""}, raw=True)
