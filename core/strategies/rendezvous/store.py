"""The store of a rendezvous, in which a rank doesn't wait for others that have left."""

from __future__ import annotations

import atexit
import contextlib
import os
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import PrefixStore, Store  # torch.distributed's own, with types

from core.contract import WorkerError
from core.strategies.rendezvous.timeout import Wait, late_error, listed

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

_ANY_LEFT = "core/left"


class RendezvousStore:
    """The store of one rendezvous of all ranks, as `core.strategies.fingerprint.exchange` needs it.

    A rank whose program ends says so in the store, so that ranks that come later, or wait, don't do
    so in vain. One that has never come can't say so; it is named when the time is over.
    """

    def __init__(self, store: Store, rank: int, world_size: int, timeout: timedelta) -> None:
        """Use `store` under a prefix of its own: a group that was left, or died before a restart,
        leaves its keys.
        """
        self.store = PrefixStore(str(store.add(f"core/joins/{rank}", 1)), store)
        self._shared, self._rank, self._world_size, self._timeout = store, rank, world_size, timeout

    def set(self, key: str, value: str) -> None:
        """Write, and say that this rank has come."""
        self.store.set(key, value)
        self.store.set(_came(self._rank), "")

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which begins at 0; returns what it is then."""
        return self.store.add(key, amount)

    def get(self, key: str) -> bytes:
        """Read a value; wait until another rank has written it.

        Raises:
            WorkerError: a rank has left instead of coming, or hasn't come in time; it is named.
        """
        wait = Wait(self._rank, self._timeout)
        while not self.store.check([key]):
            is_late = wait.is_over
            if is_late or self._shared.check([_ANY_LEFT]):
                absent = self._absent()
                # Rank 0 keeps the store, and may leave when it has come.
                may_have_left = sorted({0, *absent})
                left = [rank for rank in may_have_left if self._shared.check([_left(rank)])]
                if left:
                    raise WorkerError(
                        f"{listed(left)} ended the program without reaching the start of the "
                        f"process group, where rank {self._rank} waits. All ranks must make the "
                        "same calls: look for a sys.exit or a return that only some ranks reach.",
                        rank=left[0],
                    )
                if is_late:
                    raise late_error(absent or [0], self._rank, self._timeout)
            wait.pause(self._absent)
        return self.store.get(key)

    def _absent(self) -> list[int]:
        return _without(
            lambda ranks: self.store.check([_came(rank) for rank in ranks]), range(self._world_size)
        )


def announce_exit(store: Store, rank: int, is_there: Callable[[], bool]) -> None:
    """Announce to the other ranks when this rank's program ends, as long as the store is there.

    Its server lives in a process of the run, which may be gone first, and torch prints a page about
    each such call.
    """
    pid = os.getpid()

    def leave() -> None:
        # A forked child inherits the handler, and doesn't speak for its parent.
        if os.getpid() == pid and is_there():
            with contextlib.suppress(RuntimeError):
                # The name before the flag: a rank that sees the flag looks for names. In one
                # message: the second to a server that has gone since is what torch warns of.
                store.multi_set([_left(rank), _ANY_LEFT], ["", ""])  # type: ignore[attr-defined]  # torch's stub

    atexit.register(leave)


def _without(have_all: Callable[[range], bool], ranks: range) -> list[int]:
    """The ranks that make `have_all` false: a few questions for each of them, and one where there
    are none.
    """
    if not ranks or have_all(ranks):
        return []
    if len(ranks) == 1:
        return list(ranks)
    middle = len(ranks) // 2
    return _without(have_all, ranks[:middle]) + _without(have_all, ranks[middle:])


def _came(rank: int) -> str:
    return f"core/came/{rank}"


def _left(rank: int) -> str:
    return f"{_ANY_LEFT}/{rank}"
