"""Calls to the store of the watch, none of which waits for a server that is gone."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

from core.watch.boards import Board

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._C._distributed_c10d import Store


class StoreAccess:
    """The store as a board, which one thread asks.

    Attributes:
        board: for functions that `ask` runs.
        is_gone: see there.
        calls: the thread.
    """

    def __init__(self, store: Store, is_gone: Callable[[], bool]) -> None:
        """Make it.

        Args:
            store: a connection of its own, to which ranks bring the same prefix.
            is_gone: True if the process that has the store has ended, as far as this rank can see:
                torch would print a page about the connection.
        """
        from torch._C._distributed_c10d import PrefixStore

        self.board = Board(PrefixStore("core/watch", store))
        self.is_gone = is_gone
        self.calls = BackgroundCalls("watch over ranks: store")

    def ask(self, function: Callable[[], None], timeout_s: float) -> bool:
        """Run a function that asks the store; False if there is no answer yet, or the store is
        gone.
        """
        return not self.is_gone() and self.calls.run(function, timeout_s)


class BackgroundCalls:
    """Runs one function at a time in a thread that sleeps in between. A store whose server is
    stopped never answers.

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

        Once one has failed, none is run any more: the connection is broken, and torch prints a page
        for each attempt.
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
        function = self._asked.get()
        while function is not None:
            try:
                function()
            except Exception:  # of the store, whose server may be gone
                self._has_failed = True
            self._is_back.set()
            function = self._asked.get()
