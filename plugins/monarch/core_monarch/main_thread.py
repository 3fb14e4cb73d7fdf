"""Calls from Monarch's threads into the main thread, where Python handles signals and so interrupts
a call.
"""

from __future__ import annotations

import queue
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class MainThread:
    """The main thread of a rank's process. One a process.

    Attributes:
        is_busy: a call runs.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | int] = (
            queue.SimpleQueue()
        )
        self.is_busy = False

    def serve(self) -> int:
        """Main thread. Run calls, one after the other, until the process is to end. Returns its
        exit code.
        """
        while not isinstance(call := self._calls.get(), int):
            function, future = call
            self.is_busy = True
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
            finally:
                self.is_busy = False
        return call

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Any thread. Have the main thread call it."""
        future: Future[Any] = Future()
        self._calls.put((function, future))
        return future

    def leave(self, exit_code: int) -> None:
        """Any thread. End the process, where no call runs."""
        self._calls.put(exit_code)


MAIN_THREAD = MainThread()
