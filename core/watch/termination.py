"""Termination of a rank by a verdict: by an exception where Python can raise one, else by force."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from core.contract import HangError
from core.display.torchrun import show_once_per_node
from core.display.tracebacks import format_short
from core.launch.connections import hang_up
from core.watch.kernel import process_state

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

SIGNAL = signal.SIGURG
"""Ignored by default, so that it does no harm to a forked copy, or before the handler is
installed.
"""
_HEAR_S = 1.5


class Termination:
    """Raises the verdict in the watched thread. One a watch; made in that thread.

    Attributes:
        error: the verdict, once there is one.
        is_over: an uncaught error is being shown: nothing is raised any more.
    """

    def __init__(self, store_port: int, ask: Callable[[], None]) -> None:
        """Install the signal handler and the excepthook. `ask` fetches a verdict that another rank
        has decided.
        """
        self.error: HangError | None = None
        self._ask = ask
        self.is_over = False
        self._is_raised = threading.Event()
        self._store_port = store_port
        self._thread = threading.get_ident()
        self._is_main = threading.current_thread() is threading.main_thread()
        self._hook = self._on_uncaught  # a bound method is another object each time
        self._previous_hook, sys.excepthook = sys.excepthook, self._hook
        self._previous: Any = None
        if self._is_main:
            self._previous = signal.signal(SIGNAL, self._on_signal)

    def end(self, error: HangError, grace_s: float) -> None:
        """Called by the watching thread. Returns if the watched thread ends by itself, or after the
        grace period.
        """
        self.error, began_s = error, time.monotonic()
        if self._is_main:  # another thread gets it once its connections are cut
            signal.pthread_kill(self._thread, SIGNAL)
        # Once all ranks have read it: a rank that loses a connection before would show that, and
        # not the verdict.
        if not self._is_raised.wait(_HEAR_S + 1.0):
            hang_up(self._store_port)
            # it may wait, too
            threading.Thread(target=_abort_group, name="abort group", daemon=True).start()
        time.sleep(max(0.0, grace_s - (time.monotonic() - began_s)))

    def explain(self, error: BaseException) -> BaseException:
        """The verdict, if there is one: what an error of the transport comes from, when the
        connections were cut.
        """
        if isinstance(error, KeyboardInterrupt | SystemExit | HangError):
            return error
        if self.error is None and isinstance(error, RuntimeError | ConnectionError):
            self._ask()  # another rank may have cut the connections before this one has read why
        if self.error is None:
            return error
        self._is_raised.set()
        # Where the rank waited. What the transport says is no more than that the connections were
        # cut.
        self.error.__suppress_context__ = True
        return self.error.with_traceback(error.__traceback__)

    def close(self) -> None:
        """Restore the signal handler and the excepthook. Call `faulthandler.unregister` first: it
        restores one too.
        """
        if sys.excepthook is self._hook:
            sys.excepthook = self._previous_hook
        if self._is_main and threading.current_thread() is threading.main_thread():
            if not callable(self._previous):
                self._previous = _ignore
            signal.signal(SIGNAL, self._previous)

    def _on_signal(self, number: int, frame: Any) -> None:
        # Not into an `except` or `finally` block that runs: it would replace the error that is
        # handled there.
        is_late = self.is_over or sys.exception() is not None or self._is_raised.is_set()
        if self.error is None or is_late:
            return
        self._is_raised.set()
        raise self.error

    def _on_uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self.is_over = True
        explained = self.explain(error)
        self._previous_hook(type(explained), explained, explained.__traceback__ or trace)


def _ignore(number: int, frame: object) -> None:
    """Do nothing, as the kernel does by default.

    Another rank, which takes this one for one that doesn't answer, may send a signal late, and
    without a handler Python would print that it has lost one.
    """


def _abort_group() -> None:
    """Abort what runs on a device, where the backend can. Gloo, which can't, has lost its
    connections.
    """
    import torch.distributed as dist

    with suppress(Exception):  # the group may be left meanwhile
        if dist.group.WORLD is not None and "gloo" not in dist.get_backend():
            dist.group.WORLD.abort()


def leave_at_once(error: HangError) -> None:
    """End this process with code 1, as no exception could end it."""
    show_once_per_node(format_short(error))
    os._exit(1)


def end_by_force(pid: int) -> None:
    """Kill another process of this machine, if it is still there."""
    if process_state(pid) not in ("Z", ""):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def continue_process(pid: int) -> None:
    """Send SIGCONT to a stopped process of this machine, so that it can end by itself."""
    if process_state(pid) in ("T", "t"):
        with suppress(OSError):
            os.kill(pid, signal.SIGCONT)
