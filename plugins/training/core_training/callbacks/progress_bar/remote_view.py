"""The progress of a rank that can't draw itself, as in a notebook's forks: sent to the main
process, which draws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.launch import on_message, send_to_main
from core_training.callbacks.progress_bar.view import ProgressTask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core_training.callbacks.progress_bar.view import View

_SUBJECT = "progress"
_WAIT_S = 1.0
"""Seconds to wait until a message that must not be lost is on its way."""


class RemoteProgressView:
    """The rank's side: a View that sends its calls to the main process, which makes them again.

    Args:
        interval_s: seconds between two updates.
    """

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._send("open")

    def begin(self, task: ProgressTask) -> None:
        """Show it from now on."""
        self._send("begin", name=task.name, total=str(task.total), done=task.done)

    def update(self, task: ProgressTask) -> None:
        """Show its position. One that finds the line full is left out."""
        metrics = {}
        for name, value in task.metrics.items():
            metrics[name] = value
            if not isinstance(value, str):
                metrics[name] = float(value)
        send_to_main(_SUBJECT, {"call": "update", "done": task.done, "metrics": metrics})

    def end(self, task: ProgressTask) -> None:
        """Show it no longer."""
        self._send("end")

    def write(self, line: str, *, is_header: bool = False) -> None:
        """A line that stays."""
        if not self._send("write", line=line, is_header=is_header):
            print(line, flush=True)  # noqa: T201  # this is the output

    def close(self) -> None:
        """Leave the screen in order."""
        self._send("close")

    def _send(self, call: str, **values: object) -> bool:
        return send_to_main(_SUBJECT, {"call": call, **values}, wait_s=_WAIT_S)


class ProgressViewServer:
    """The main process's side: draws what rank 0 sends.

    Args:
        make_view: makes what draws.
    """

    def __init__(self, make_view: Callable[[], View]) -> None:
        self._make_view = make_view
        self._view: View | None = None
        self._tasks: list[ProgressTask] = []

    def listen(self) -> None:
        """Draw from now on; nothing happens before there are ranks."""
        on_message(_SUBJECT, self.take)

    def take(self, message: Mapping[str, Any]) -> None:
        """Do what the rank's view was asked to do."""
        values = dict(message)
        getattr(self, f"_{values.pop('call')}")(**values)

    def _open(self) -> None:
        self._close()
        self._view = self._make_view()

    def _begin(self, name: str, total: str, done: int) -> None:
        assert self._view is not None
        self._tasks.append(ProgressTask(name, float(total), done))
        self._view.begin(self._tasks[-1])

    def _update(self, done: int, metrics: Mapping[str, object]) -> None:
        assert self._view is not None
        self._tasks[-1].advance(done, metrics)
        self._view.update(self._tasks[-1])

    def _end(self) -> None:
        assert self._view is not None
        self._view.end(self._tasks.pop())
        if self._tasks:
            self._tasks[-1].mark()

    def _write(self, line: str, is_header: bool) -> None:
        assert self._view is not None
        self._view.write(line, is_header=is_header)

    def _close(self) -> None:
        if self._view is not None:
            self._view.close()
        self._view = None
        self._tasks = []
