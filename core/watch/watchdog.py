"""The thread that watches one rank, and exchanges statuses with the other ranks' threads when
nothing moves.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from core.watch.decision import StandstillDecision
from core.watch.other_ranks import OtherRanks
from core.watch.own_status import OwnStatus
from core.watch.stack_file import StackFile
from core.watch.status_exchange import StatusExchange
from core.watch.store_access import StoreAccess
from core.watch.termination import Termination, continue_process, end_by_force, leave_at_once

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from core.contract.world import World
    from core.watch.options import WatchdogOptions

_WAKE_S = 1.0
_LONGEST_PAUSE_S = 5.0


class Watchdog:
    """Watches the thread that it is made in, until `close`.

    Attributes:
        pid: of the watched process.
        termination: raises the verdict.
        exchange: exchanges statuses with the other ranks.
    """

    def __init__(
        self,
        options: WatchdogOptions,
        store: Store,
        world: World,
        store_port: int,
        *,
        is_store_hosted: bool = False,
    ) -> None:
        """All ranks.

        Args:
            options: the user's.
            store: this watch's own connection, to which ranks bring the same prefix.
            world: the ranks.
            store_port: where the store listens.
            is_store_hosted: it outlives the process of rank 0.
        """
        self.pid = os.getpid()
        self._options, limit_s = options, options.limit.total_seconds()
        self._calls_after_s = max(_WAKE_S, min(_LONGEST_PAUSE_S, limit_s / 2))
        # Healthy ranks look for a call less often than they look at themselves.
        self._looks_every = max(1, round(min(limit_s / 6, _LONGEST_PAUSE_S) / _WAKE_S))
        self._num_wakes = 0
        self._stacks = StackFile()
        self._own = own = OwnStatus(options, world, self._stacks)
        self._others = others = OtherRanks(
            options, own.rank, world.world_size, own.machine, self._looks_every
        )
        self._store = StoreAccess(store, lambda: not is_store_hosted and others.is_gone(0))
        self._decision = StandstillDecision(options, own.machine)
        self.exchange = StatusExchange(own, self._store, others, self._decision)
        self.termination = Termination(store_port, self._ask)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch over ranks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching, and publish to the other ranks that this one has left."""
        self._is_closed.set()
        # After an error the store may be gone, and torch prints a page about that.
        if not self.termination.is_over and sys.exception() is None:
            self.exchange.leave(_WAKE_S)
        self._store.close(_WAKE_S)
        if self._thread is not threading.current_thread():
            self._thread.join(_WAKE_S)
        if not self.termination.is_over and sys.exception() is None:  # a run that ends has gone on
            self._decision.warnings.clear(self._own.since_s)
        self._stacks.close()
        self.termination.close()

    def _run(self) -> None:
        self._own.watcher = threading.get_native_id()
        self._store.ask(self._enter, _WAKE_S)
        while not self._is_closed.wait(_WAKE_S):
            self._wake()
            if self._decision.verdict and self._options.ends_run:
                self._end()
                return

    def _enter(self) -> None:
        self._stacks.open()
        self.exchange.enter()

    def _wake(self) -> None:
        stood_s = self._own.since_s
        since_s, now_s = self._own.look(), time.monotonic()
        self._num_wakes += 1
        if not since_s:
            self._decision.warnings.clear(stood_s)
        if since_s > self._calls_after_s:
            self.exchange.call(now_s)
        is_called = self.exchange.is_on(now_s)
        if since_s or is_called:
            sample = self._own.sample(self._others.local_pids())
            if is_called:
                self.exchange.run(self._own.now(sample), now_s)
        if not is_called and self._num_wakes % self._looks_every == 0:
            self._store.ask(self.exchange.listen, _WAKE_S / 4)

    def _ask(self) -> None:
        """Called in the watched thread after a lost connection: fetch the verdict, if another rank
        has decided.
        """
        if not self._options.ends_run:
            return
        if not self._decision.verdict:
            self._store.ask(self.exchange.listen, _WAKE_S)
        if self._decision.verdict:
            self.termination.error = self.termination.error or self._decision.error()

    def _end(self) -> None:
        """End this process by the verdict, and the absent processes of this machine."""
        error = self.termination.error or self._decision.error()
        own = self._own
        here = [each for each in error.ranks if each.host == own.host]
        present = [each.rank for each in here if each.rank not in error.absent]
        absent = []
        # The first rank of this machine that is present ends those of it that are absent.
        if min(present, default=own.rank) == own.rank:
            absent = [
                each.pid for each in here if each.rank in error.absent and each.pid != own.pid
            ]
        for pid in absent:
            continue_process(pid)
        self.termination.end(error, self._options.grace.total_seconds())
        for pid in absent:
            end_by_force(pid)
        if not self._is_closed.is_set():
            self._stacks.close()
            leave_at_once(error)
