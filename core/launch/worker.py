"""The worker's side: it hears that others are gone, and reports why it ends itself."""

from __future__ import annotations

import atexit
import faulthandler
import signal
import sys
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from core.contract import WorkerError
from core.launch.forked_copies import ForkedCopies
from core.launch.timeouts import ECHO_S, GRACE_S
from core.launch.worker_failure import WorkerFailure

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from core.launch.channel import Channel

_signals: dict[int, float] = {}


class Membership:
    """A worker's bond to the main process that made it. One a process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._previous_hook = sys.excepthook
        self._is_shown = False

    def begin(self) -> None:
        """Hear from the main process from now on. Main thread only, as Python's signal handlers
        are.

        Raises:
            WorkerError: the main process is gone already.
        """
        signal.signal(signal.SIGIO, self._on_news)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, exit_on_signal)
        atexit.register(self._end)
        ForkedCopies(self._forget)
        # From here on the kernel sends this process SIGIO when there is news.
        self._channel.claim()
        # News that came before the handler was there has sent no signal.
        self._on_news(signal.SIGIO, None)

    def report_uncaught(self) -> None:
        """Make the main process show uncaught exceptions of this worker, in their order, instead of
        this one.
        """
        self._previous_hook, sys.excepthook = sys.excepthook, self._on_uncaught

    def report(self, error: BaseException) -> None:
        """Report to the main process why this worker ends."""
        self._channel.send(asdict(WorkerFailure.of(error)))

    def report_progress(self, num_begun: int, num_done: int) -> None:
        """Report to the main process how many launched functions this worker has begun and
        completed.
        """
        self._channel.send({"begun": num_begun, "done": num_done})

    @property
    def is_orphaned(self) -> bool:
        """True if the main process is gone."""
        self._channel.receive()
        return self._channel.peer_is_gone

    def _on_uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._is_shown = True
        if self.is_orphaned:
            self._previous_hook(kind, error, trace)
        elif not isinstance(error, KeyboardInterrupt):
            self.report(error)
        self._end()

    def _end(self) -> None:
        """Make news end the process at once from here on, as no `finally` is left to run."""
        signal.signal(signal.SIGIO, signal.SIG_DFL)

    def _forget(self) -> None:
        """Forget the bond in a forked copy, such as a loader's worker: it isn't its own."""
        sys.excepthook = self._previous_hook
        if signal.getsignal(signal.SIGTERM) is exit_on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._end()

    def _on_news(self, signum: int, frame: FrameType | None) -> None:
        error = None
        for note in self._channel.receive():
            error = WorkerError(note["message"], rank=note["rank"])
        if self._channel.peer_is_gone:
            signal.signal(signal.SIGIO, signal.SIG_IGN)
            # A watchdog in C, which also ends a process that is stuck in native code, and says
            # where.
            faulthandler.dump_traceback_later(GRACE_S, exit=True, file=2)
            error = error or WorkerError(
                "The main process is gone, so its workers end too.", rank=0
            )
        # An exception that is being handled already ends this worker; a second one would hide it.
        # Nor is a `finally` left where an error is shown, or the interpreter waits for threads:
        # the main thread is alive in a part of that wait.
        is_over = self._is_shown or threading._SHUTTING_DOWN  # type: ignore[attr-defined]
        if error is not None and sys.exception() is None and not is_over:
            raise error


def exit_on_signal(signum: int, frame: FrameType | None) -> None:
    """End by an exception, so that `finally` blocks run, with the code that shells give to this
    signal.

    The same signal that comes again at once is an echo: sent to the whole group, and handed on by
    the main process.
    """
    now_s = time.monotonic()
    came_s, _signals[signum] = _signals.get(signum, -ECHO_S), now_s
    if now_s - came_s >= ECHO_S:
        raise KeyboardInterrupt if signum == signal.SIGINT else SystemExit(128 + signum)


def in_main_thread() -> bool:
    """True if Python lets this thread set signal handlers."""
    return threading.current_thread() is threading.main_thread()
