"""Ctrl-C and SIGTERM in a main process that only waits for its workers."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from core.launch.worker import in_main_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class HearsSignals(Protocol):
    """The workers of a launcher, as far as signals go."""

    def forward(self, number: int, /) -> None:
        """Hand a signal on to all of them. Called in a handler, between any two instructions of the
        main thread.
        """


class SignalForwarder:
    """A context that forwards signals to the workers, which end as they see fit: at a step, perhaps
    with a checkpoint.

    The first one is handed on, and the main process goes on waiting, for as long as the workers
    take. The second one is an exception here, which ends them by force. Handlers of the user's own
    are left alone, and so is everything outside of the main thread. Who waits within waits for
    `LOOK_S` at a time: see there.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._group: HearsSignals | None = None
        self._is_holding, self._held = False, 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> SignalForwarder:
        if in_main_thread():
            for number, default in (
                (signal.SIGINT, signal.default_int_handler),
                (signal.SIGTERM, signal.SIG_DFL),
            ):
                if signal.getsignal(number) is default:
                    self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def to(self, group: HearsSignals) -> None:
        """Send signals to the workers from now on, as they are there. Before, signals are
        exceptions.
        """
        self._group = group

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context in which workers are made, without an exception from a signal that would leave
        them behind.

        The first signal that comes meanwhile is answered at its end.
        """
        self._is_holding = True
        try:
            yield
        finally:
            self._is_holding = False
        if self._held:
            self._on_signal(self._held, None)

    def raise_for(self) -> None:
        """Raise what the signal means to the main process, if there was one, once the workers have
        ended.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            SystemExit: SIGTERM, with its code.
        """
        if self._signal is not None:
            raise _exception(self._signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_holding:
            self._held = self._held or number
            return
        if self._group is None or self._signal is not None:
            raise _exception(number)
        self._signal = number
        self._group.forward(number)


def _exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
