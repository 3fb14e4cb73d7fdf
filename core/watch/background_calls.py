"""Calls that may never return, made in a background thread."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class BackgroundCalls:
    """Runs one function at a time in a thread that sleeps in between. A store whose server is stopped never answers.

    Attributes:
        thread: the thread.
    """

    def __init__(self, name: str) -> None:
        self._asked: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._is_back = threading.Event()
        self._is_back.set()
        self._has_failed = False
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    def run(self, function: Callable[[], Any], timeout_s: float) -> bool:
        """Run it; False if it is still at work after so many seconds, or the one before it is.

        Once one has failed, none is run any more: the connection is broken, and torch prints a page for each attempt.
        """
        if self._has_failed or not self._is_back.is_set():
            return False
        self._is_back.clear()
        self._asked.put(function)
        return self._is_back.wait(timeout_s) and not self._has_failed

    def close(self, timeout_s: float) -> None:
        """End the thread, after what it is at."""
        self._asked.put(None)
        self.thread.join(timeout_s)

    def _work(self) -> None:
        while (function := self._asked.get()) is not None:
            try:
                function()
            except Exception:  # of the store, whose server may be gone, or of the folder
                self._has_failed = True
            self._is_back.set()
