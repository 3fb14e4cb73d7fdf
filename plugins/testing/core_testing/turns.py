"""Ranks that are threads of one process and run one at a time: each goes on until it has to wait
for another one.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from torch.distributed import distributed_c10d as c10d

from core import UnsupportedError, WorkerError
from core_testing import surroundings
from core_testing.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = "rank in one process "
_REFUSED = {
    "os.fork": "fork, as a loader's workers and launchers do: the copy would have this rank's "
    "thread alone",
    "os.kill": "send a signal, which its process would get for all ranks",
    "signal.pthread_kill": "send a signal, which its process would get for all ranks",
}


class RunIsOver(BaseException):
    """Ends a rank where it waits, since another one has failed. Not an `Exception`: there is
    nothing to handle.
    """


class Turns:
    """Runs a function on each rank, one rank at a time, always in the same order.

    The turn goes on in `wait_until` only: between two waits no rank sees another one, and nothing
    depends on time. What a process has once and each rank needs for itself is put aside with the
    turn: random numbers, variables, the working directory, filters of warnings, torch's default
    dtype and process groups.
    """

    def __init__(self, size: int) -> None:
        """Begin with ranks that wait for their first turn."""
        self.rank = size - 1
        self._failure: WorkerError | None = None
        self._waits: dict[int, tuple[str, Callable[[], bool]]] = {}
        self._wakes = [threading.Semaphore(0) for _ in range(size)]
        self._is_over = threading.Event()

    def run(self, function: Callable[[int], Any], timeout_s: float) -> list[Any]:
        """Call `function(rank)` for every rank. Returns what it returned, one item a rank.

        Raises:
            WorkerError: a rank has failed, and the others were ended; or none can go on; or they
                aren't done in time.
        """
        _refuse_what_is_of_processes()
        results: list[Any] = [None for _ in self._wakes]
        put_back = self._put_aside()

        def work(rank: int) -> None:
            try:
                self._await_turn(rank, put_back)
                results[rank] = function(rank)
            except RunIsOver:
                pass
            except BaseException as error:
                self._fail(rank, f"failed with {type(error).__name__}: {error}", error)
            self._hand_over()

        threads = [
            threading.Thread(target=work, args=[rank], name=f"{_NAME}{rank}", daemon=True)
            for rank in range(len(results))
        ]
        for rank, thread in enumerate(threads):
            self._waits[rank] = "its start", lambda: True
            thread.start()
        try:
            self._hand_over()
            if not self._is_over.wait(timeout_s):
                running = sys._current_frames().get(threads[self.rank].ident or 0)
                where = "".join(traceback.format_stack(running)) if running else ""
                self._fail(
                    self.rank, f"has not come to a wait for another rank in {timeout_s} s:\n{where}"
                )
                self._is_over.set()
                self._waits.clear()
                # all others end, and this one does if it ever comes to a wait
                for wake in self._wakes:
                    wake.release()
            else:
                for thread in threads:
                    thread.join()
                for thread in threads:
                    wait_until(partial(_has_ended, thread), f"end of {thread.name}")
        finally:
            put_back()
        if self._failure is not None:
            raise self._failure
        return results

    def wait_until(self, is_there: Callable[[], bool], what: str) -> None:
        """This rank. Hand the turn over until something is there.

        Raises:
            RunIsOver: another rank has failed.
            UnsupportedError: this is a thread that a rank has made.
        """
        if threading.current_thread().name != f"{_NAME}{self.rank}":
            raise UnsupportedError(
                "A background thread of a rank in one process can't talk to others, whose turn "
                "never comes while the rank waits for it: save without AsyncCheckpointIO, or on "
                "ranks that are processes."
            )
        rank, put_back = self.rank, self._put_aside()
        self._waits[rank] = what, is_there
        self._hand_over()
        self._await_turn(rank, put_back)

    def _await_turn(self, rank: int, put_back: Callable[[], None]) -> None:
        self._wakes[rank].acquire()
        if not self._is_over.is_set():  # else the process isn't this rank's any more
            put_back()
        if self._failure is not None:
            raise RunIsOver

    def _hand_over(self) -> None:
        """Give the turn to the next rank whose wait is over; after a failure to any, so that each
        comes to its end.
        """
        size = len(self._wakes)
        waiting = [
            rank % size
            for rank in range(self.rank + 1, self.rank + 1 + size)
            if rank % size in self._waits
        ]
        if not waiting:
            self._is_over.set()
            return
        ready = [rank for rank in waiting if self._failure is not None or self._waits[rank][1]()]
        if not ready:
            waits = [f"rank {rank} waits for {self._waits[rank][0]}" for rank in sorted(waiting)]
            ended = [f"rank {rank} has ended" for rank in range(size) if rank not in self._waits]
            self._fail(
                min(waiting),
                f"can't go on, and neither can another one: {', '.join((*waits, *ended))}.",
            )
            ready = waiting
        self.rank = ready[0]
        del self._waits[self.rank]
        self._wakes[self.rank].release()

    def _fail(self, rank: int, text: str, cause: BaseException | None = None) -> None:
        if self._failure is None:
            lines = traceback.format_exception(cause) if cause is not None else []
            self._failure = WorkerError(
                f"Rank {rank} {text}", rank=rank, worker_traceback="".join(lines) or None
            )
            self._failure.__cause__ = cause

    @staticmethod
    def _put_aside() -> Callable[[], None]:
        settings, groups = surroundings.copy_shared(), c10d._world

        def restore() -> None:
            surroundings.restore(settings)
            c10d._world = groups

        return restore


def _has_ended(thread: threading.Thread) -> bool:
    """True once the system has no such thread any more. Until then libraries free what they had for
    it, under locks that a fork of this process would never get (MKL's allocator).
    """
    return not os.path.exists(f"/proc/self/task/{thread.native_id}")


@cache
def _refuse_what_is_of_processes() -> None:
    """Once a process: a hook for Python's audits can't be taken back."""

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _REFUSED or not threading.current_thread().name.startswith(_NAME):
            return
        if event == "os.kill" and (arguments[0] != os.getpid() or arguments[1] == 0):
            return
        raise UnsupportedError(
            f"A rank in one process can't {_REFUSED[event]}. Run this test on ranks that are "
            "processes."
        )

    sys.addaudithook(refuse)
