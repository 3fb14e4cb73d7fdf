"""The workers of one node, seen from the main process: the end of one stops the others.

A `WorkerGroup` decides which of them failed first; launchers and `core run` ask it.
`core.display.lost_connection` knows which errors are only the effect of another rank's end.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.display.lost_connection import CAUSE_S, is_lost_connection
from core.launch.timeouts import GRACE_S, HEAR_S
from core.launch.worker_failure import WorkerFailure, left_early, worker_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from core.contract import WorkerError
    from core.launch.channel import Channel

_LOOKS_EVERY_S = 0.05


@dataclass(eq=False, slots=True)
class Worker:
    """A worker process.

    Attributes:
        rank: global rank.
        pid: of the process; negative for all of its process group, as `os.kill` takes it.
        poll: returns its exit code, negative for a signal; None while it runs.
        channel: the main process's end of the line.
        exit_code: None while it runs.
        report: what it said as it ended by an exception.
        num_begun: launched functions that it has come to.
        num_done: launched functions that it has come to the end of.
    """

    rank: int
    pid: int
    poll: Callable[[], int | None]
    channel: Channel
    exit_code: int | None = None
    report: WorkerFailure | None = None
    num_begun: int = 0
    num_done: int = 0

    @property
    def is_running(self) -> bool:
        """True if it hasn't ended."""
        return self.exit_code is None

    @property
    def has_failed(self) -> bool:
        """True if it has ended in another way than by finishing, or has said so, though its end
        takes time.
        """
        return bool(self.exit_code) or self.report is not None

    @property
    def has_left(self) -> bool:
        """True if it has ended with code 0, as if its work were done."""
        return self.exit_code == 0

    @property
    def is_cause(self) -> bool:
        """True if it has failed by itself, not because another rank was gone."""
        return self.has_failed and (self.report is None or not self.report.is_echo)

    def look(self) -> None:
        """Note what it has said, and its end."""
        if not self.is_running:
            return
        exit_code = self.poll()  # before the messages, so that none is missed
        for message in self.channel.receive():
            if "begun" in message:
                self.num_begun, self.num_done = message["begun"], message["done"]
            else:
                self.report = WorkerFailure(**message)
        if exit_code is not None:
            self.channel.close()
            self.channel.peer_is_gone = True
            self.exit_code = exit_code

    def signal(self, number: int) -> None:
        """Send a signal, if it is still there."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def start_all(starts: Iterable[Worker]) -> list[Worker]:
    """Start workers as they are asked for. Those that run end if a further one can't be started."""
    started: list[Worker] = []
    try:
        started.extend(starts)
    except BaseException:
        for worker in started:
            worker.channel.close()
        raise
    return started


class WorkerGroup:
    """Finds out which worker failed first, and ends all of them. A thread looks at them.

    Attributes:
        failure: of the worker that failed first; None as long as none has.
    """

    def __init__(
        self, workers: Sequence[Worker], on_failure: Callable[[WorkerError], None]
    ) -> None:
        """Watch from now on; `on_failure` is called in the watching thread, before the other
        workers are stopped.
        """
        self.failure: WorkerError | None = None
        self._workers = list(workers)
        self._on_failure = on_failure
        self._looking = threading.Lock()
        self._over: list[Worker] = []
        """Those that have ended, or begun to, in this order."""
        self._is_stopping = False
        self._forwarded: int | None = None
        self._num_needed = 0
        self._has_main_lost = False
        self._watcher = threading.Thread(target=self._watch, name="watch ranks", daemon=True)
        self._watcher.start()

    @property
    def running_ranks(self) -> list[int]:
        """Ranks of workers that haven't ended."""
        return [worker.rank for worker in self._running()]

    def wait(self, timeout_s: float = float("inf")) -> bool:
        """Wait until all workers have ended and it is known why; return True if they have."""
        return self._await(self._is_over, timeout_s)

    def need(self, num_launches: int) -> None:
        """Set the number of launches that a worker has to do: one that ends before leaves the
        others waiting for it.
        """
        self._num_needed = num_launches

    def await_launch(self, number: int, timeout_s: float) -> None:
        """Wait until all workers that are left have come to the launch of this number."""
        self._await(
            lambda: all(worker.num_begun >= number for worker in self._running()), timeout_s
        )

    def first_failure(self, error: BaseException) -> WorkerError | None:
        """The worker's failure behind an error of the main process, if there is one; may wait for
        it to show.
        """
        # A lost connection is the effect of another rank's end, which may not have been noticed
        # yet.
        if is_lost_connection(error):
            self._has_main_lost = not isinstance(error, ConnectionError)
            self._await(lambda: self.failure is not None or self._is_stopping, GRACE_S)
            self._has_main_lost = False
        return self.failure

    def stop(self, message: str, rank: int, free: Callable[[], None] | None = None) -> None:
        """Raise an exception in all workers that says why; end those that take too long. Returns
        when all are gone.

        Python can't raise in a worker that waits in native code: `free` is called for such, and
        should end their wait.
        """
        with self._looking:
            # Both the main thread and the watching thread may come here; the workers hear it once.
            is_first, self._is_stopping = not self._is_stopping, True
        for worker in self._running():
            if is_first and worker.report is None:  # else it is ending already
                worker.channel.send({"message": message, "rank": rank})
        try:
            if free is not None and not self._await(self._are_all_ended, HEAR_S):
                free()
            self._await(self._are_all_ended, GRACE_S)
        finally:
            self.kill()

    def forward(self, number: int) -> None:
        """Send a signal to all workers, by which they end as they see fit: that is no failure, and
        has time.
        """
        self._forwarded = number
        for worker in self._running():
            worker.signal(number)

    def join(self) -> None:
        """Wait for the watching thread, after `stop`: a fork that comes next refuses to copy
        threads.
        """
        self._watcher.join(GRACE_S)

    def kill(self) -> None:
        """End what is left at once, and wait for it."""
        self._is_stopping = True
        for worker in self._running():
            worker.signal(signal.SIGKILL)
        self._await(self._are_all_ended, GRACE_S)

    def _running(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.is_running]

    def _are_all_ended(self) -> bool:
        return not self._running()

    def _await(self, is_done: Callable[[], bool], timeout_s: float) -> bool:
        """Look at the workers until something is so; False if it isn't in time."""
        end_s = time.monotonic() + timeout_s
        while True:
            news = select.poll()
            with self._looking:
                for worker in self._workers:
                    worker.look()
                    is_gone = worker.channel.peer_is_gone
                    if (is_gone or worker.has_failed) and worker not in self._over:
                        self._over.append(worker)
                    if not is_gone:
                        news.register(worker.channel, select.POLLIN)
            if is_done():
                return True
            if time.monotonic() > end_s:
                return False
            # A worker that ends closes its line, which ends this wait: the first one is known.
            news.poll(_LOOKS_EVERY_S * 1000)

    def _failed(self) -> list[Worker]:
        """Workers that have ended otherwise than expected, and those that have said why they
        will.
        """
        failed, forwarded = [], self._forwarded
        for worker in self._over:
            # A forwarded SIGTERM ends a worker by the signal itself, or by SystemExit(128 + 15).
            is_unexpected = worker.has_failed and (
                forwarded is None or worker.exit_code not in (128 + forwarded, -forwarded)
            )
            if worker.has_left:
                # Code 0 is a failure while others still need this rank, or have lost their
                # connection to it.
                is_missed = worker.num_done < self._num_needed or self._has_main_lost
                have_lost = any(each.exit_code and not each.is_cause for each in self._over)
                is_unexpected = forwarded is None and (is_missed or have_lost)
            if is_unexpected:
                failed.append(worker)
        return failed

    def _is_over(self) -> bool:
        is_known = self.failure is not None or self._is_stopping or not self._failed()
        return self._are_all_ended() and is_known

    def _watch(self) -> None:
        """Find out which worker failed first, and tell all the others."""
        while self.failure is None and not self._is_stopping:
            self._await(lambda: self._is_stopping or bool(self._failed()), float("inf"))
            # The cause may take long to end, and has said so before.
            self._await(
                lambda: self._is_stopping or any(each.is_cause for each in self._failed()),
                CAUSE_S,
            )
            failed = self._failed()
            if failed and not self._is_stopping:
                first = min(failed, key=lambda each: (not each.is_cause, not each.has_left))
                rank, exit_code = first.rank, first.exit_code
                if exit_code == 0:
                    failure = left_early(rank, first.num_begun, first.num_done, self._num_needed)
                else:
                    failure = worker_error(rank, exit_code or 1, first.report)
                self.failure = failure
                self._on_failure(failure)
                self.stop(
                    f"Rank {rank} ended first, and this rank stops because of it. {failure}", rank
                )
