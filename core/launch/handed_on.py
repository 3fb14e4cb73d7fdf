"""Ctrl-C and SIGTERM in a main process that only waits for its workers."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from core.launch.worker import in_main_thread

if TYPE_CHECKING:
    from types import TracebackType

    from core.launch.group import WorkerGroup


class HandedOn:
    """A context in which signals go to the workers, who know best how to end: at a step, perhaps with a checkpoint.

    The first one is handed on, and the main process goes on waiting, for as long as the workers take. The second one
    is an exception here, which ends them by force. Handlers of the user's own are left alone, and so is everything
    outside of the main thread.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._group: WorkerGroup | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> HandedOn:
        if in_main_thread():
            for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                if signal.getsignal(number) is default:
                    self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def to(self, group: WorkerGroup) -> None:
        """The workers are there: from now on signals go to them. Before, they are exceptions."""
        self._group = group

    def raise_for(self) -> None:
        """The workers have ended. Raise what the signal means to the main process, if there was one.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            SystemExit: SIGTERM, with its code.
        """
        if self._signal is not None:
            raise _exception(self._signal)

    def _on_signal(self, number: int, frame: Any) -> None:
        if self._group is None or self._signal is not None:
            raise _exception(number)
        self._signal = number
        self._group.hand_on(number)


def _exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
