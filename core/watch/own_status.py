"""The status of this rank: what it does, for how long it has stood still, and what it waits for."""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from core.contract.rank_location import Awaited, AwaitsRanks
from core.watch import kernel
from core.watch.flight_recorder import Collective, newest, num_begun, run_on_device
from core.watch.phases import heartbeat
from core.watch.rank_status import RankStatus
from core.watch.standstill import Standstill
from core.watch.thread_sampler import ThreadSampler

if TYPE_CHECKING:
    from collections.abc import Set

    from core.contract.world import World
    from core.watch.options import WatchdogOptions
    from core.watch.stack_file import StackFile
    from core.watch.thread_sampler import ThreadSample

_PART_SURE = 3.0
"""Fraction of the limit after which a certain hang ends the run."""
_MOVES_S = 1.0
"""Seconds without progress that are none yet."""


class OwnStatus:
    """Makes the statuses of this rank. It is made in the thread that is watched, and asked in
    another one.

    Attributes:
        rank: global rank.
        host: name of this machine.
        machine: see `core.watch.kernel.machine`.
        pid: of this process.
        watcher: the thread that watches, by the kernel's number.
        sampler: looks at the watched thread.
    """

    def __init__(self, options: WatchdogOptions, world: World, stacks: StackFile) -> None:
        self.rank, self._stacks = world.global_rank, stacks
        self._strategy = world
        self.pid, self.watcher = os.getpid(), 0
        self.host, self.machine = socket.gethostname(), kernel.machine()
        limit_s = options.limit.total_seconds()
        self._least_s = limit_s / _PART_SURE
        heartbeat.begin()
        self._standstill = Standstill(heartbeat, limit_s, options.end_after.total_seconds())
        self._watched = threading.get_ident()
        self.sampler = ThreadSampler(self._watched, threading.get_native_id(), world.waits_in)
        self._collective: tuple[int, str, Collective] = (-1, "", Collective())

    @property
    def since_s(self) -> float:
        """Seconds since the rank made progress, as it was last looked at."""
        return self._standstill.since_s

    def look(self) -> float:
        """Seconds since the rank made progress."""
        return self._standstill.look(num_begun())

    def sample(self, others: Set[int]) -> ThreadSample:
        """A look at the watched thread. `others` are the processes of ranks of this machine."""
        sample = self.sampler.sample(others)
        self._standstill.note(is_waiting=sample.state == "waits", is_at_work=sample.is_at_work)
        return sample

    def now(self, sample: ThreadSample) -> RankStatus:
        """The status at a look."""
        state, recorded, awaited = sample.state, Collective(), Awaited("", ())
        if state == "waits" or (self.since_s > _MOVES_S and run_on_device()):
            # Reading torch's record takes a while, and it doesn't change while the rank stands
            # still.
            if self._collective[:2] != (heartbeat.count, sample.line):
                # what torch records is for debugging, and differs between releases
                with suppress(Exception):
                    self._collective = (heartbeat.count, sample.line, newest())
            recorded = self._collective[2]
        if recorded.name:
            state = "waits"
        if sys.gettrace() is not None:
            state = "debugged"
        if state == "waits":
            awaited = self._awaited()
        end_after_s, least_s = self._standstill.end_after_s, self._least_s
        if sample.is_moving:
            least_s = end_after_s
        return replace(
            self.named(state),
            phase=heartbeat.phase,
            line=heartbeat.line or sample.line,
            since_s=self.since_s,
            warn_after_s=self._standstill.warn_after_s,
            end_after_s=end_after_s,
            least_s=least_s,
            collective=recorded.name,
            awaits=awaited.what,
            awaited_ranks=awaited.ranks,
            is_usual=recorded.is_usual,
            num_calls=recorded.num_calls,
            count=heartbeat.count,
            stack=self.sampler.stack(),
        )

    def named(self, state: str) -> RankStatus:
        """A status that only identifies this process."""
        return RankStatus(
            self.rank,
            state,
            least_s=self._least_s,
            host=self.host,
            machine=self.machine,
            pid=self.pid,
            thread=self._watched,
            watcher=self.watcher,
            stacks=self._stacks.path,
        )

    def _awaited(self) -> Awaited:
        """The messages for which this rank waits, if its strategy knows that."""
        found = None
        with suppress(Exception):  # another thread of it is at work
            if isinstance(self._strategy, AwaitsRanks):
                found = self._strategy.awaited()
        if found is None:
            return Awaited("", ())
        ranks = ", ".join(map(str, found.ranks))
        return replace(found, what=f"{found.what}, of rank{'s' * (len(found.ranks) > 1)} {ranks}")
