"""The workers of one node, seen from the main process: the end of one stops the others."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.display.lost_connection import is_lost_connection
from core.launch.timeouts import GRACE_S, HEAR_S
from core.launch.worker_failure import WorkerFailure, left_early, worker_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from core.contract import WorkerError
    from core.launch.channel import Channel

_CAUSE_S = 2.0
"""Seconds to look for the cause when a rank reports no more than a lost connection."""
_LISTEN_S = 0.1
"""Seconds after which running workers are listened to while the cause is looked for."""


@dataclass(eq=False, slots=True)
class Worker:
    """A worker process.

    Attributes:
        rank: global rank.
        pid: of the process; negative for all of its process group, as `os.kill` takes it.
        wait: blocks until the process has ended; returns its exit code, negative for a signal.
        channel: the main process's end of the line.
        exit_code: None while it runs.
        report: what it said as it ended by an exception.
        num_begun: launched functions that it has come to.
        num_done: launched functions that it has come to the end of.
    """

    rank: int
    pid: int
    wait: Callable[[], int]
    channel: Channel
    exit_code: int | None = None
    report: WorkerFailure | None = None
    num_begun: int = 0
    num_done: int = 0

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
        return self.has_failed and not (self.report is not None and self.report.is_echo)

    def listen(self) -> None:
        """Read the messages that it has sent."""
        while message := self.channel.receive():
            if "begun" in message:
                self.num_begun, self.num_done = message["begun"], message["done"]
            else:
                self.report = WorkerFailure(**message)


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
    """Watches workers, finds out which failed first, and ends all of them. A thread waits for each
    worker.
    """

    def __init__(
        self, workers: Sequence[Worker], on_failure: Callable[[WorkerError], None]
    ) -> None:
        """Watch from now on; `on_failure` is called in a watching thread, before the other workers
        are stopped.
        """
        self._workers = list(workers)
        self._on_failure = on_failure
        self._changed = threading.Condition()
        self._ended: list[Worker] = []
        self._is_deciding = False
        self._is_stopping = False
        self._forwarded: int | None = None
        self._num_needed = 0
        self._has_lost = False
        self.failure: WorkerError | None = None
        self._watchers = [
            threading.Thread(
                target=self._watch, args=(worker,), name=f"watch rank {worker.rank}", daemon=True
            )
            for worker in self._workers
        ]
        for watcher in self._watchers:
            watcher.start()

    @property
    def running_ranks(self) -> list[int]:
        """Ranks of workers that haven't ended."""
        with self._changed:
            return [worker.rank for worker in self._running()]

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all workers have ended and it is known why; return True if they have."""
        with self._changed:
            return self._changed.wait_for(self._is_over, timeout_s)

    def need(self, num_launches: int) -> None:
        """Set the number of launches that a worker has to do: one that ends before leaves the
        others waiting for it.
        """
        with self._changed:
            for worker in self._running():
                worker.listen()
            self._num_needed = num_launches
            self._decide_in_thread()

    def have_come_to(self, number: int) -> bool:
        """True if all workers that are left have come to the launch of this number."""
        with self._changed:
            for worker in self._running():
                worker.listen()
            return all(worker.num_begun >= number for worker in self._running())

    def first_failure(self, error: BaseException) -> WorkerError | None:
        """The worker's failure behind an error of the main process, if there is one; may wait for
        it to show.
        """
        with self._changed:
            # A lost connection is the effect of another rank's end, which may not have been noticed
            # yet.
            if is_lost_connection(error):
                was_lost, self._has_lost = self._has_lost, not isinstance(error, ConnectionError)
                self._decide_in_thread()
                self._listen_until(lambda: self.failure is not None or self._is_stopping, GRACE_S)
                self._has_lost = was_lost
            return self.failure

    def stop(self, message: str, rank: int, free: Callable[[], None] | None = None) -> None:
        """Raise an exception in all workers that says why; end those that take too long. Returns
        when all are gone.

        Python can't raise in a worker that waits in native code: `free` is called for such, and
        should end their wait.
        """
        with self._changed:
            # Both the main thread and the deciding thread may come here; the workers hear it once.
            is_first, self._is_stopping = not self._is_stopping, True
            self._changed.notify_all()
        # Outside of the lock: a full pipe must not keep the watching threads from noting that
        # workers end.
        if is_first:
            for worker in self._running():
                if worker.report is None:  # else it is ending already
                    worker.channel.send({"message": message, "rank": rank})
        try:
            if free is not None and not self._await_end(HEAR_S):
                free()
            self._await_end(GRACE_S)
        finally:
            self.kill()

    def forward(self, number: int) -> None:
        """Send a signal to all workers, by which they end as they see fit: that is no failure, and
        has time.
        """
        self._forwarded = number
        for worker in self._running():
            with suppress(ProcessLookupError):
                os.kill(worker.pid, number)

    def join(self) -> None:
        """Wait for the watching threads, after `stop`: a fork that comes next refuses to copy
        threads.
        """
        for watcher in self._watchers:
            watcher.join(GRACE_S)

    def kill(self) -> None:
        """End what is left at once, and wait for it."""
        with self._changed:
            self._is_stopping = True
        for worker in self._running():
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
        self._await_end(GRACE_S)

    def other_causes(self) -> list[WorkerError]:
        """The errors that ended workers report, other than lost connections."""
        return [
            worker_error(w.rank, w.exit_code or 0, w.report)
            for w in self._ended
            if w.report and w.is_cause
        ]

    def _running(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.exit_code is None]

    def _await_end(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(self._are_all_ended, timeout_s)

    def _failed(self) -> list[Worker]:
        """Workers that have ended otherwise than expected, and those that have said why they
        will.
        """
        reported = [worker for worker in self._running() if worker.report is not None]
        return [worker for worker in (*self._ended, *reported) if self._is_unexpected(worker)]

    def _listen_until(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        """Wait, and hear meanwhile what running workers say. The caller holds the lock."""
        end_s = time.monotonic() + timeout_s
        while not is_done() and (left_s := end_s - time.monotonic()) > 0:
            self._changed.wait(min(left_s, _LISTEN_S))
            for worker in self._running():
                worker.listen()
            self._decide_in_thread()

    def _are_all_ended(self) -> bool:
        return len(self._ended) == len(self._workers)

    def _is_unexpected(self, worker: Worker) -> bool:
        forwarded = self._forwarded
        if worker.has_left:
            # Code 0 is a failure while others still need this rank, or have lost their connection
            # to it.
            return forwarded is None and (worker.num_done < self._num_needed or self._has_lost)
        # A forwarded SIGTERM ends a worker by the signal itself, or by SystemExit(128 + 15).
        return worker.has_failed and (
            forwarded is None or worker.exit_code not in (128 + forwarded, -forwarded)
        )

    def _is_over(self) -> bool:
        is_clear = (
            self.failure is not None
            or self._is_stopping
            or not any(map(self._is_unexpected, self._ended))
        )
        return self._are_all_ended() and is_clear

    def _watch(self, worker: Worker) -> None:
        exit_code = worker.wait()
        with self._changed:
            worker.listen()
            worker.channel.close()
            worker.exit_code = exit_code
            self._ended.append(worker)
            self._has_lost |= worker.has_failed and not worker.is_cause
            self._changed.notify_all()
            is_first = self._is_first_to_decide()
        if is_first:
            # here: a thread that begins while something fails may find no memory, or be forked
            # halfway
            self._decide()

    def _is_first_to_decide(self) -> bool:
        """True if the caller is to find out which worker was first. It holds the lock."""
        if self._is_deciding or self._is_stopping or not self._failed():
            return False
        self._is_deciding = True
        return True

    def _decide_in_thread(self) -> None:
        """Begin to find out which worker was first, if one has failed. The caller holds the lock,
        and goes on.
        """
        if self._is_first_to_decide():
            self._watchers.append(
                threading.Thread(target=self._decide, name="find out who failed first", daemon=True)
            )
            self._watchers[-1].start()

    def _decide(self) -> None:
        """Find out which worker failed first, and tell all the others."""
        with self._changed:
            # The cause may take long to end, and has said so before.
            self._listen_until(
                lambda: self._is_stopping or any(w.is_cause for w in self._failed()), _CAUSE_S
            )
            first = self._first() if not self._is_stopping else None
            # Nothing to decide after all: the next end of a worker asks again.
            self._is_deciding = first is not None
            if first is None:
                return
            self.failure = failure = self._describe(first)
            self._changed.notify_all()
        # Without the lock: the callback stops the others, whose watchers need it.
        self._on_failure(failure)
        self.stop(
            f"Rank {first.rank} ended first, and this rank stops because of it. {failure}",
            first.rank,
        )

    def _first(self) -> Worker | None:
        """The worker that failed by itself; else one that left the others waiting; else one that
        lost a connection.
        """
        return min(
            self._failed(),
            key=lambda worker: (not worker.is_cause, not worker.has_left),
            default=None,
        )

    def _describe(self, worker: Worker) -> WorkerError:
        if not worker.has_left:
            return worker_error(
                worker.rank, 1 if worker.exit_code is None else worker.exit_code, worker.report
            )
        return left_early(worker.rank, worker.num_begun, worker.num_done, self._num_needed)
