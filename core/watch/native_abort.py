"""A handler for `std::terminate`, by which native code such as gloo's aborts the process."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_Handler = ctypes.CFUNCTYPE(None)
_made: list[Any] = []
"""Handlers that native code may still call."""


class TerminateHandler:
    """Calls a function when C++ is about to abort this process, then the previous handler.

    So does gloo where a rank sends more than another has room for, in a thread of its own. Nothing can keep the process
    from its end, but until the function returns, its other threads go on.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        """Install the handler by `std::set_terminate`, if the C++ library is there."""
        self._function, self._pid, self._previous = function, os.getpid(), None
        self._set: Any = None
        with suppress(OSError, AttributeError):
            # The compiler's name for void (*std::set_terminate(void (*)()))().
            self._set = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
        if self._set is not None:
            self._set.argtypes, self._set.restype = [ctypes.c_void_p], ctypes.c_void_p
            _made.append(_Handler(self._on_terminate))
            self._own = ctypes.cast(_made[-1], ctypes.c_void_p).value
            self._previous = self._set(self._own)

    def close(self) -> None:
        """Restore the previous handler, unless another library has installed its own since."""
        if self._set is not None:
            current = self._set(self._previous)
            if current != self._own:
                self._set(current)
            self._set = None
        self._function = lambda: None  # native code keeps this object, which keeps nothing of a run that has ended

    def _on_terminate(self) -> None:
        if os.getpid() == self._pid:  # a forked copy isn't watched
            self._function()
        if self._previous:
            _Handler(self._previous)()
