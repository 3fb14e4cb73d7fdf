"""Calls to the store of the watch, none of which waits for a server that is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.launch.connections import StoreConnections
from core.watch.background_calls import BackgroundCalls
from core.watch.boards import StoreBoard

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._C._distributed_c10d import Store


class StoreAccess:
    """The store as a board, which one thread asks.

    Attributes:
        board: for functions that `ask` runs.
        calls: the thread.
    """

    def __init__(self, store: Store, port: int, is_server_gone: Callable[[], bool]) -> None:
        """Make it.

        Args:
            store: a connection of its own, to which ranks bring the same prefix.
            port: where the store listens.
            is_server_gone: True if the process that has the store has ended, as far as this rank can see.
        """
        from torch._C._distributed_c10d import PrefixStore

        self.board = StoreBoard(PrefixStore("core/watch", store))
        self._connections, self._is_server_gone = StoreConnections(port), is_server_gone
        self.calls = BackgroundCalls("watch over ranks: store")

    def ask(self, function: Callable[[], None], timeout_s: float) -> bool:
        """Run a function that asks the store; False if there is no answer yet, or the store is gone."""
        return not self.is_gone() and self.calls.run(function, timeout_s)

    def is_gone(self) -> bool:
        """True if it has ended, with its process or before: torch would print a page about the connection."""
        return self._is_server_gone() or self._connections.are_hung_up()
