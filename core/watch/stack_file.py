"""The file in memory in which faulthandler writes the stacks of this process when another one asks
by a signal.
"""

from __future__ import annotations

import faulthandler
import os
import tempfile
from contextlib import suppress
from typing import IO

from core.watch.termination import SIGNAL


class StackFile:
    """The stacks of this process, from `open` to `close`."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._file: IO[str] | None = None
        self._has_enabled = False

    @property
    def path(self) -> str:
        """A path that processes of this machine can read; empty before `open`."""
        return f"/proc/{self._pid}/fd/{self._file.fileno()}" if self._file is not None else ""

    def open(self) -> None:
        """Make faulthandler write there, and to stderr if native code aborts, which leaves no other
        trace.
        """
        if not faulthandler.is_enabled():
            # a stderr that is no file
            with suppress(AttributeError, OSError, RuntimeError, ValueError):
                faulthandler.enable()
                self._has_enabled = True
        self._file = _open_in_memory()
        faulthandler.register(SIGNAL, self._file, all_threads=True, chain=True)

    def close(self) -> None:
        """Restore what faulthandler did before."""
        faulthandler.unregister(SIGNAL)
        if self._has_enabled:
            faulthandler.disable()
        if self._file is not None:
            self._file.close()
            self._file = None


def _open_in_memory() -> IO[str]:
    """An anonymous file in memory, which vanishes with the process."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("core-watch"), "w")
    return tempfile.TemporaryFile("w")
