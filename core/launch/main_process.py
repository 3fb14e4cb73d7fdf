"""The program's first process, which is a rank itself, with the others as its children."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

from core.contract import WorkerError
from core.launch.group import Worker, WorkerGroup
from core.launch.patience import GRACE_S
from core.launch.report import summarize
from core.launch.signal_watch import SignalWatch, call_main_thread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_FINISH_S = 60.0
"""How long workers may go on after the main process has finished its script."""


class MainProcess:
    """Holds the workers until the script ends. One a process.

    - A worker fails: the main thread gets a WorkerError that names it, wherever it is; a main thread that is stuck in
      native code, so that it can't get it, is ended.
    - The script fails here: the workers get an exception that says so, time for their `finally` blocks, and are ended.
    - SIGTERM ends the script by SystemExit(143), Ctrl-C by KeyboardInterrupt, and the workers with it, also if the
      main thread waits in native code for a rank that never comes.
    - The script ends well: it waits for the workers, and ends with 1 if one of them failed unseen. (Who catches the
      WorkerError that `launch` raises chooses the code.)
    """

    def __init__(self, workers: Sequence[Worker], rank: int) -> None:
        self.rank = rank
        self._is_told = threading.Event()
        self._ends_badly: str | None = None
        self._is_raised = False
        signal.signal(signal.SIGIO, self._on_call)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_terminate)
        self._previous_hook, sys.excepthook = sys.excepthook, self._on_uncaught
        self._group = WorkerGroup(workers, self._interrupt)
        self._watch = SignalWatch(self._free_main_thread)
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def check(self) -> None:
        """Raise what a worker has failed with since the last launch.

        Raises:
            WorkerError: a worker is gone.
        """
        if (failure := self._group.failure) is not None:
            self._is_raised = True
            raise failure from failure.__cause__

    def explain(self, error: BaseException) -> BaseException:
        """The failure that came first: `error` itself, or the worker's behind it."""
        self._is_told.set()
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self._ends_badly = summarize(error)
            return error
        failure = self._group.first_failure(error)
        if failure is None:
            return error
        self._is_raised = True
        if failure is error:
            return error
        note = f"Rank {self.rank} then stopped with {summarize(error)}"
        if not isinstance(error, WorkerError) and note not in getattr(failure, "__notes__", []):
            failure.add_note(note)
        return failure

    def close(self) -> None:
        """Idempotent. The script is over: wait for the workers, or stop them if it ended badly."""
        atexit.unregister(self.close)
        self._is_told.set()
        try:
            if self._ends_badly is not None:
                self._group.stop(f"Rank {self.rank} ended first, by {self._ends_badly}.", self.rank)
            elif not self._group.wait(_FINISH_S):
                message = f"Rank {self.rank} finished its script {_FINISH_S:.0f} s ago, and this rank is still at work."
                self._end(WorkerError(f"{message} All ranks must make the same calls.", rank=self.rank))
        except (KeyboardInterrupt, SystemExit) as interruption:
            # An exception can't leave atexit, and the code must tell the truth.
            self._group.kill()
            os._exit(interruption.code if isinstance(interruption, SystemExit) else 128 + signal.SIGINT)  # type: ignore[arg-type]
        if (failure := self._group.failure) is not None and self._ends_badly is None and not self._is_raised:
            self._end(failure)

    # in the main thread ---------------------------------------------------------------------------------------------

    def _on_call(self, signum: int, frame: Any) -> None:
        self._watch.answer()
        if self._group.failure is not None:
            self._on_worker_failure(self._group.failure)

    def _on_worker_failure(self, failure: WorkerError) -> None:
        is_first, handled = not self._is_told.is_set(), sys.exception()
        self._is_told.set()
        if is_first and handled is None and self._ends_badly is None:
            raise failure from failure.__cause__

    def _on_terminate(self, signum: int, frame: Any) -> None:
        self._ends_badly = signal.Signals(signum).name
        raise SystemExit(128 + signum)

    def _on_uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        first = self.explain(error)
        self._ends_badly = summarize(error)
        message = f"Rank {self.rank} ended first, and this rank stops because of it. {self._ends_badly}"
        self._group.stop(message, self.rank)
        if first is error and not isinstance(error, KeyboardInterrupt):
            self._note_others(error)
        self._previous_hook(type(first), first, first.__traceback__ or trace)

    def _note_others(self, error: BaseException) -> None:
        """Ranks often make the same mistake, which is then told once; a different one is worth a line."""
        for other in self._group.other_causes():
            if summarize(error) not in str(other):
                error.add_note(str(other))

    def _forget(self) -> None:
        """In a forked copy, such as a loader's worker: the workers aren't its own."""
        atexit.unregister(self.close)
        sys.excepthook = self._previous_hook
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        if signal.getsignal(signal.SIGTERM) == self._on_terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    # in a watching thread -------------------------------------------------------------------------------------------

    def _interrupt(self, failure: WorkerError) -> None:
        with contextlib.suppress(ProcessLookupError):
            call_main_thread()
        threading.Thread(target=self._end_if_stuck, args=(failure,), name="end if stuck", daemon=True).start()

    def _free_main_thread(self, number: int) -> None:
        """Without its workers, a collective that it waits in fails."""
        self._ends_badly = signal.Signals(number).name
        self._group.stop(f"Rank {self.rank} is to end by {self._ends_badly}, and so do its workers.", self.rank)

    def _end_if_stuck(self, failure: WorkerError) -> None:
        if not self._is_told.wait(2 * GRACE_S):
            self._group.kill()
            self._end(failure)

    def _end(self, failure: WorkerError) -> None:
        """End this process with code 1, since no exception can be raised any more."""
        self._group.stop(str(failure), failure.rank)
        traceback.print_exception(failure)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
