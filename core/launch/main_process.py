"""The program's first process, which is a rank itself, with the others as its children."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from functools import partial
from traceback import walk_stack
from typing import TYPE_CHECKING, Any

from core.contract import HangError, WorkerError
from core.display.tracebacks import format_short
from core.launch.connections import hang_up
from core.launch.forked_copies import ForkedCopies
from core.launch.signal_listener import SignalListener, call_main_thread
from core.launch.stop_others import Worker, WorkerGroup
from core.launch.timeouts import GRACE_S
from core.launch.worker_failure import left_early, summarize

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType

_FINISH_S = 330.0
"""Seconds that workers may go on after this script has ended; the watch, which says where one is,
ends it before.
"""


class MainProcess:
    """Holds the workers until the script ends. One a process.

    - A worker fails: the main thread gets a WorkerError that names it, wherever it is; a main
      thread that is stuck in native code, so that it can't get it, is ended.
    - The script fails here: the workers get an exception that says so, time for their `finally`
      blocks, and are ended.
    - SIGTERM ends the script by SystemExit(143), Ctrl-C by KeyboardInterrupt, and the workers with
      it, also if the main thread waits in native code for a rank that never comes.
    - The script ends well: it waits for the workers, and ends with 1 if one of them failed unseen.
      (A script that catches the WorkerError that `launch` raises chooses the code.)
    """

    def __init__(self, workers: Sequence[Worker], rank: int, store_port: int) -> None:
        self.rank = rank
        self._hang_up = partial(hang_up, store_port)
        self._has_warned = threading.Event()
        self._ends_badly: str | None = None
        self._is_raised = False
        self._num_launches = 0
        self._has_left = False
        # Threads can't raise in the main thread. They send it SIGIO, and the handler raises there.
        signal.signal(signal.SIGIO, self._on_call)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_terminate)
        self._previous_hook, sys.excepthook = sys.excepthook, self._on_uncaught
        self._group = WorkerGroup(workers, self._interrupt)
        self._watch = SignalListener(self._free_main_thread)
        atexit.register(self.close)
        ForkedCopies(self._forget)

    def check(self) -> None:
        """Raise what a worker has failed with since the last launch.

        Raises:
            WorkerError: a worker is gone.
        """
        failure = self._group.failure
        if failure is not None:
            self._is_raised = True
            raise failure from failure.__cause__

    def need(self, num_launches: int) -> None:
        """Wait until the workers have reached the launch of this number, as this process has."""
        self._num_launches, self._has_left = num_launches, False
        self._group.need(num_launches)

    def explain(self, error: BaseException) -> BaseException:
        """The failure that came first: `error` itself, or the worker's behind it."""
        self._has_warned.set()
        if isinstance(error, HangError):
            return error  # all ranks end with the same one
        # sys.exit(0) within a launch: no failure yet. `close` finds out if the workers leave in the
        # same way.
        if isinstance(error, SystemExit) and not error.code:
            self._has_left = True
            self._group.need(0)
            return error
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self._ends_badly = summarize(error)
            return error
        failure = self._group.first_failure(error)
        if failure is None:
            return error
        self._is_raised = True
        return failure

    def close(self) -> None:
        """Wait for the workers at the end of the script, or stop them if it ended badly.
        Idempotent.
        """
        atexit.unregister(self.close)
        self._has_warned.set()
        try:
            if self._ends_badly is not None:
                self._group.stop(
                    f"Rank {self.rank} ended first, by {self._ends_badly}.",
                    self.rank,
                    self._hang_up,
                )
            elif self._has_left and not self._is_followed():
                self._end(left_early(self.rank, self._num_launches, self._num_launches - 1, 0))
            elif not self._group.wait(_FINISH_S):
                behind = ", ".join(map(str, self._group.running_ranks))
                message = (
                    f"Rank {self.rank} finished its script {_FINISH_S:.0f} s ago; still at work: "
                    f"rank {behind}. All ranks must make the same calls."
                )
                self._end(WorkerError(message, rank=self.rank))
        except KeyboardInterrupt:
            self._leave(128 + signal.SIGINT)
        except SystemExit as end:
            self._leave(end.code)
        failure = self._group.failure
        if failure is not None and self._ends_badly is None and not self._is_raised:
            self._end(failure)

    def _leave(self, code: Any) -> None:
        """End this process at once: an exception would not leave atexit, and the code would be
        0.
        """
        self._group.kill()
        os._exit(code)

    def _is_followed(self) -> bool:
        """True if the workers leave too, soon after they have come to the launch that this process
        has left.
        """
        self._group.await_launch(self._num_launches, _FINISH_S)
        return self._group.wait(GRACE_S)

    # in the main thread ---------------------------------------------------------------------------

    def _on_call(self, signum: int, frame: FrameType | None) -> None:
        self._watch.answer()
        # Nothing may be raised into a hook that shows an uncaught error: the program's own frames
        # are gone then. Also pytest sets `last_value`, for a test that has failed.
        is_shown = (
            hasattr(sys, "last_value") and [*walk_stack(frame)][-1][0].f_code.co_name != "<module>"
        )
        if self._group.failure is not None and not is_shown:
            is_first, handled = not self._has_warned.is_set(), sys.exception()
            self._has_warned.set()
            # Not into an `except` or `finally` block that runs: it would replace the error that is
            # handled there.
            if is_first and handled is None and self._ends_badly is None:
                raise self._group.failure from self._group.failure.__cause__

    def _on_terminate(self, signum: int, frame: FrameType | None) -> None:
        self._ends_badly = signal.Signals(signum).name
        raise SystemExit(128 + signum)

    def _on_uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        first = self.explain(error)
        self._ends_badly = summarize(error)
        message = (
            f"Rank {self.rank} ended first, and this rank stops because of it. {self._ends_badly}"
        )
        self._group.stop(message, self.rank, self._hang_up)
        if first.__traceback__ is None:  # a worker's, which has come to no line of this process
            first.__traceback__ = trace
        self._previous_hook(type(first), first, first.__traceback__)

    def _forget(self) -> None:
        """Forget the workers in a forked copy, such as a loader's worker: they aren't its own."""
        atexit.unregister(self.close)
        sys.excepthook = self._previous_hook
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        if signal.getsignal(signal.SIGTERM) == self._on_terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    # in a watching thread -------------------------------------------------------------------------

    def _interrupt(self, failure: WorkerError) -> None:
        with contextlib.suppress(ProcessLookupError):
            call_main_thread()
        threading.Thread(
            target=self._end_if_stuck, args=(failure,), name="end if stuck", daemon=True
        ).start()

    def _free_main_thread(self, number: int) -> None:
        """End the workers, so that a collective that the main thread waits in fails."""
        self._ends_badly = signal.Signals(number).name
        self._group.stop(
            f"Rank {self.rank} is to end by {self._ends_badly}, and so do its workers.", self.rank
        )

    def _end_if_stuck(self, failure: WorkerError) -> None:
        # The handler runs only between two bytecodes. A main thread in a native collective never
        # comes to it.
        if not self._has_warned.wait(2 * GRACE_S):
            self._group.kill()
            self._end(failure)

    def _end(self, failure: WorkerError) -> None:
        """End this process with code 1, since no exception can be raised any more."""
        self._group.stop(str(failure), failure.rank, self._hang_up)
        sys.stdout.flush()
        sys.stderr.write(format_short(failure))
        sys.stderr.flush()
        os._exit(1)
