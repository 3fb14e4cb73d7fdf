"""Ctrl-C, SIGTERM, and a scheduler's warning: the end of a stage by a signal.

In training, a signal waits for the next optimizer step, so that all ranks stop at the same one and
what is saved there can be resumed exactly. Everywhere else, where no such step is near, it is an
exception at once: in set-up, validation, test and prediction, and in a wait for data that doesn't
end soon. A second Ctrl-C is an exception at once anywhere.
"""

from __future__ import annotations

import _thread
import builtins
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from core.contract import WorkerError
from core.launch import ECHO_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType, TracebackType

    from core_training.progress import Progress

_WAIT_FOR_DATA_S = 2.0
"""Time that a signal waits for a batch that is being loaded, before it interrupts the wait."""


class Interrupted(SystemExit):
    """A signal ends the run; uncaught, the process ends with the code that shells give to it: 143
    for SIGTERM.

    Attributes:
        signal: its number.
        is_agreed: all ranks raise this after the same optimizer step, so that they can still save
            together.
    """

    def __init__(self, number: int, *, is_agreed: bool = False) -> None:
        super().__init__(128 + number % 128)  # a copy is made with the code
        self.signal = signal.Signals(number % 128)
        self.is_agreed = is_agreed

    def __str__(self) -> str:
        return f"interrupted by {self.signal.name}"


class InterruptedByUser(Interrupted, KeyboardInterrupt):
    """Ctrl-C: a KeyboardInterrupt to code that catches one; uncaught, the process ends with 130."""


def interruption(number: int, *, is_agreed: bool = False) -> BaseException:
    """The exception to raise for a signal. At a prompt and in a notebook, Ctrl-C must not end the
    session.
    """
    if number != signal.SIGINT:
        return Interrupted(number, is_agreed=is_agreed)
    if hasattr(sys, "ps1") or sys.flags.interactive or hasattr(builtins, "__IPYTHON__"):
        plain = KeyboardInterrupt()
        plain.is_agreed = is_agreed  # type: ignore[attr-defined]  # as Interrupted has it, for those who save
        return plain
    return InterruptedByUser(number, is_agreed=is_agreed)


class SignalGuard:
    """A context, one stage long, in which signals are answered as this module says. Handlers come
    back afterwards.

    The user's own handlers are left alone. Outside of the main thread nothing is done: Python
    handles signals in the main thread only.

    Attributes:
        signal: the one that came first, None if none has.
        is_fetching: set by the training loop while it waits for a batch.
    """

    def __init__(self, progress: Progress, warnings: Sequence[int] = ()) -> None:
        """Create the listener, which installs no handler yet.

        Args:
            progress: of training.
            warnings: signals by which a scheduler announces the end; they wait for a step in
                validation too.
        """
        self.signal: int | None = None
        self.is_fetching = False
        self._progress = progress
        self._warnings = tuple(warnings)
        self._wake: Callable[[], None] | None = None
        self._is_near_step = self._is_over = self._raises_next = self._came_late = False
        self._came_s = 0.0
        self._pid = os.getpid()
        self._main_thread = threading.main_thread().ident
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> SignalGuard:
        try:
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGINT, signal.SIGTERM, *self._warnings):
                    handler = signal.getsignal(number)
                    # Python's default handler or one of our launchers', rather than the user's.
                    module = getattr(handler, "__module__", None) or ""
                    if handler in (signal.SIG_DFL, signal.default_int_handler) or module.startswith(
                        "core.launch."
                    ):
                        # first: the signal may come with its handler
                        self._previous[number] = handler
                        signal.signal(number, self._on_signal)
            return self
        except BaseException:  # a signal that came already, and `__exit__` is not called after it
            self._put_back()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        self._put_back()
        if self.signal is not None and (error is None or self._came_late):
            # it came too late to stop anything, and the exit code must still show it
            raise interruption(self.signal)

    def _put_back(self) -> None:
        """Give signals their handlers back. One that comes meanwhile is noted, and raises
        nothing.
        """
        self._is_over = True
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    @contextmanager
    def training(self, wake: Callable[[], None]) -> Iterator[None]:
        """A context in which training runs: signals wait for its next step, and each calls
        `wake`.
        """
        self._wake, self._is_near_step = wake, True
        try:
            yield
        finally:
            self._wake, self._is_near_step = None, False

    @contextmanager
    def apart_from_steps(self) -> Iterator[None]:
        """A context far from any step: signals are exceptions at once, a scheduler's warnings
        aside.
        """
        self._is_near_step = False
        try:
            yield
        finally:
            self._is_near_step = self._wake is not None

    @contextmanager
    def hidden_from_children(self) -> Iterator[None]:
        """A context that hides Ctrl-C and warnings from processes that are made inside, forked or
        not.

        The parent answers them: it needs its loader's workers up to the step at which it stops.
        Signals that come meanwhile reach it when it leaves the context.
        """
        hidden = self._previous.keys() - {signal.SIGTERM}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, hidden)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def agree(self, number: int) -> BaseException:
        """All ranks, after one of them got this signal. The exception that each of them raises."""
        if self.signal is None:
            self.signal, self._came_s = number, time.monotonic()
        return interruption(number, is_agreed=True)

    def explain(self, error: BaseException) -> BaseException:
        """The exception that ends the stage: the signal's, if one has come; later errors are mostly
        its consequence.
        """
        if self.signal is None or not isinstance(error, Exception):
            return error
        first = interruption(self.signal)
        first.__cause__ = error
        return first

    # in the main thread, between any two of its instructions --------------------------------------

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # A forked copy. A daemon, such as a loader's worker, ends with its parent, which needs
            # it for a step.
            if number == signal.SIGTERM or not multiprocessing.current_process().daemon:
                signal.signal(
                    number,
                    signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL,
                )
                os.kill(os.getpid(), number)
        elif self.signal is None:
            self.signal, self._came_s = number, time.monotonic()
            # The frame is that of `__exit__` before its first line has run.
            if self._is_over or getattr(frame, "f_code", None) is SignalGuard.__exit__.__code__:
                self._came_late = True
            else:
                self._answer(number)
        # A second Ctrl-C means now. One that comes at once is the first one again: a terminal sends
        # it to every process, and a launcher hands it on.
        elif not self._is_over and (
            self._raises_next
            or (number == signal.SIGINT and time.monotonic() - self._came_s > ECHO_S)
        ):
            self._raises_next = False
            raise interruption(self.signal)

    def _answer(self, number: int) -> None:
        if not self._is_near_step and not (self._wake is not None and number in self._warnings):
            raise interruption(number)
        assert self._wake is not None
        self._wake()
        # Not through `threading`, whose locks the interrupted instruction may hold.
        _thread.start_new_thread(self._watch_wait, (number,))

    def _watch_wait(self, number: int) -> None:
        """Interrupt a wait for data that doesn't end. Runs in a thread of its own."""
        waiting_for = -1
        while not self._is_over:
            time.sleep(_WAIT_FOR_DATA_S)
            before, waiting_for = (
                waiting_for,
                self._progress.total_batches if self.is_fetching else -1,
            )
            # The same batch at two looks: this wait is a long one.
            if waiting_for >= 0 and waiting_for == before and self._main_thread is not None:
                self._raises_next = True
                signal.pthread_kill(self._main_thread, number)
                return


@contextmanager
def workers_interruption(calls_in_place: bool) -> Iterator[None]:
    """A context that turns the signal that ended a launcher's workers into the main process's own
    interruption.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        if calls_in_place or isinstance(error, Interrupted):
            raise
        raise interruption(signal.SIGINT) from None
    except WorkerError as error:
        number = (error.exit_code or 0) - 128
        if error.worker_traceback is not None or number not in (signal.SIGINT, signal.SIGTERM):
            raise
        raise interruption(number) from error
