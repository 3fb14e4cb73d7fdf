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
    """The store as a board, which one thread asks. It sleeps in between; a store whose server is
    stopped never answers.

    Attributes:
        board: for functions that `ask` runs.
        is_gone: True if the process that has the store has ended, as far as this rank can see:
            torch would print a page about the connection.
    """

    def __init__(self, store: Store, is_gone: Callable[[], bool]) -> None:
        """Make it.

        Args:
            store: a connection of its own, to which ranks bring the same prefix.
            is_gone: see above.
        """
        from torch._C._distributed_c10d import PrefixStore

        self.board = Board(PrefixStore("core/watch", store))
        self.is_gone = is_gone
        self._asked: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._is_back = threading.Event()
        self._is_back.set()
        self._has_failed = False
        self._thread = threading.Thread(
            target=self._work, name="watch over ranks: store", daemon=True
        )
        self._thread.start()

    def ask(self, function: Callable[[], Any], timeout_s: float) -> bool:
        """Run a function that asks the store; False if it is still at work after so many seconds,
        or the one before it is, or the store is gone.

        Once one has failed, none is run any more: the connection is broken, and torch prints a page
        for each attempt.
        """
        if self._has_failed or not self._is_back.is_set() or self.is_gone():
            return False
        self._is_back.clear()
        self._asked.put(function)
        return self._is_back.wait(timeout_s) and not self._has_failed

    def close(self, timeout_s: float) -> None:
        """End the thread, after what it is at."""
        self._asked.put(None)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        function = self._asked.get()
        while function is not None:
            try:
                function()
            except Exception:  # of the store, whose server may be gone
                self._has_failed = True
            self._is_back.set()
            function = self._asked.get()
