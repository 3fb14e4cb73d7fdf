"""Notice a signal that the main thread can't answer, since it is stuck in native code."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable

from core.launch.timeouts import GRACE_S


class SignalListener:
    """Watches over SIGTERM and SIGINT. Python runs their handlers in the main thread, between two
    steps of Python.

    A main thread that waits in a collective for a rank which never comes makes no such step, and
    the process would outlive every polite request to end. So a thread of its own hears of the
    signal (through Python's wakeup file, which is written when the signal arrives), calls the main
    thread with SIGIO, and acts if it doesn't answer.
    """

    def __init__(self, on_unanswered: Callable[[int], None]) -> None:
        """`on_unanswered` is called in the watching thread with the signal, and should free the
        main thread.
        """
        self._on_unanswered = on_unanswered
        self._answered = threading.Event()
        self._heard, self._wakeup = socket.socketpair()
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._forget)
        threading.Thread(target=self._watch, name="watch signals", daemon=True).start()

    def answer(self) -> None:
        """Answer the watch; called by the main thread's handler of SIGIO."""
        self._answered.set()

    def _forget(self) -> None:
        """Stop watching in a forked copy, such as a loader's worker, which gets signals of its
        own.
        """
        if signal.set_wakeup_fd(-1) != self._wakeup.fileno():
            return
        self._heard.close()
        self._wakeup.close()

    def _watch(self) -> None:
        numbers = self._heard.recv(64)
        while numbers:
            for number in numbers:
                if number not in (signal.SIGTERM, signal.SIGINT):
                    continue
                self._answered.clear()
                call_main_thread()
                if self._answered.wait(GRACE_S):
                    continue
                # No answer: free the main thread, which then comes to its handlers. One that
                # doesn't is stuck for good.
                self._on_unanswered(number)
                if not self._answered.wait(GRACE_S):
                    os._exit(128 + number)
            numbers = self._heard.recv(64)


def call_main_thread() -> None:
    """Send SIGIO to the main thread; a system call that it waits in is interrupted."""
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.pthread_kill(main_thread, signal.SIGIO)
