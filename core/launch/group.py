"""The workers of one node, seen from the main process."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.launch.patience import GRACE_S
from core.launch.report import Report, is_echo, worker_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.contract import WorkerError
    from core.launch.channel import Channel

_SETTLE_S = 2.0
"""How long to look for the cause when a rank reports no more than a lost connection."""


@dataclass(eq=False, slots=True)
class Worker:
    """A worker process.

    Attributes:
        rank: global rank.
        pid: of the process.
        wait: blocks until the process has ended; returns its exit code, negative for a signal.
        channel: the main process's end of the line.
        exit_code: None while it runs.
        report: what it said as it ended by an exception.
    """

    rank: int
    pid: int
    wait: Callable[[], int]
    channel: Channel
    exit_code: int | None = None
    report: Report | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it has ended in another way than by finishing."""
        return bool(self.exit_code)

    @property
    def is_cause(self) -> bool:
        """Whether it has failed by itself, not because another rank was gone."""
        return self.has_failed and not (self.report is not None and self.report.is_echo)


class WorkerGroup:
    """Watches workers, finds out who failed first, and ends all of them. A thread waits for each worker."""

    def __init__(self, workers: Sequence[Worker], on_failure: Callable[[WorkerError], None]) -> None:
        """Watch from now on; `on_failure` is called in a watching thread, before the other workers are stopped."""
        self._workers = list(workers)
        self._on_failure = on_failure
        self._changed = threading.Condition()
        self._ended: list[Worker] = []
        self._is_deciding = False
        self._is_stopping = False
        self._handed_on: int | None = None
        self.failure: WorkerError | None = None
        self._watchers = [
            threading.Thread(target=self._watch, args=(worker,), name=f"watch rank {worker.rank}", daemon=True)
            for worker in self._workers
        ]
        for watcher in self._watchers:
            watcher.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all workers have ended and it is known why. Whether they have."""
        with self._changed:
            return self._changed.wait_for(self._is_over, timeout_s)

    def first_failure(self, error: BaseException) -> WorkerError | None:
        """The worker's failure behind an error of the main process, if there is one; may wait for it to show."""
        with self._changed:
            if is_echo(error):
                self._changed.wait_for(lambda: self.failure is not None or self._is_stopping, GRACE_S)
            return self.failure

    def stop(self, message: str, rank: int) -> None:
        """Raise an exception in all workers that says why; end those that take too long. Returns when all are gone."""
        with self._changed:
            is_first, self._is_stopping = not self._is_stopping, True
            self._changed.notify_all()
        if is_first:
            for worker in self._running():
                worker.channel.send({"message": message, "rank": rank})
        try:
            with self._changed:
                self._changed.wait_for(self._are_all_ended, GRACE_S)
        finally:
            self.kill()

    def hand_on(self, number: int) -> None:
        """Send a signal to all workers, by which they end as they see fit: that is no failure, and has time."""
        self._handed_on = number
        for worker in self._running():
            with suppress(ProcessLookupError):
                os.kill(worker.pid, number)

    def join(self) -> None:
        """Wait for the watching threads, after `stop`: a fork that comes next refuses to copy threads."""
        for watcher in self._watchers:
            watcher.join(GRACE_S)

    def kill(self) -> None:
        """End what is left at once, and wait for it."""
        with self._changed:
            self._is_stopping = True
        for worker in self._running():
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
        with self._changed:
            self._changed.wait_for(self._are_all_ended, GRACE_S)

    def other_causes(self) -> list[WorkerError]:
        """What workers that have ended report, other than lost connections."""
        return [worker_error(w.rank, w.exit_code or 0, w.report) for w in self._ended if w.report and w.is_cause]

    def _running(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.exit_code is None]

    def _are_all_ended(self) -> bool:
        return len(self._ended) == len(self._workers)

    def _is_unexpected(self, worker: Worker) -> bool:
        handed_on = self._handed_on
        return worker.has_failed and (handed_on is None or worker.exit_code not in (128 + handed_on, -handed_on))

    def _is_over(self) -> bool:
        is_clear = self.failure is not None or self._is_stopping or not any(map(self._is_unexpected, self._ended))
        return self._are_all_ended() and is_clear

    def _watch(self, worker: Worker) -> None:
        exit_code = worker.wait()
        message = worker.channel.receive()
        worker.channel.close()
        with self._changed:
            worker.report = Report.from_message(message) if message else None
            worker.exit_code = exit_code
            self._ended.append(worker)
            self._changed.notify_all()
            if not self._is_unexpected(worker) or self._is_deciding or self._is_stopping:
                return
            self._is_deciding = True
        self._decide()

    def _decide(self) -> None:
        """A worker has failed: find out who was first, tell everybody."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping or any(w.is_cause for w in self._ended), _SETTLE_S)
            if self._is_stopping:
                return
            failed = [worker for worker in self._ended if worker.has_failed]
            first = min(failed, key=lambda worker: not worker.is_cause)
            self.failure = failure = worker_error(first.rank, first.exit_code or 0, first.report)
            self._changed.notify_all()
        self._on_failure(failure)
        self.stop(f"Rank {first.rank} ended first, and this rank stops because of it. {failure}", first.rank)
