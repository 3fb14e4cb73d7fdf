"""The file in memory in which faulthandler writes the stacks of this process when another one asks
by a signal.
"""

from __future__ import annotations

import faulthandler
import os
from contextlib import suppress
from typing import IO

from core.watch.termination import SIGNAL


class StackFile:
    """The stacks of this process, from `open` to `close`."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._file: IO[str] | None = None

    @property
    def path(self) -> str:
        """A path that processes of this machine can read; empty before `open`."""
        if self._file is None:
            return ""
        return f"/proc/{self._pid}/fd/{self._file.fileno()}"

    def open(self) -> None:
        """Make faulthandler write there, and to stderr if native code aborts, which leaves no other
        trace.
        """
        if not faulthandler.is_enabled():
            # a stderr that is no file
            with suppress(AttributeError, OSError, RuntimeError, ValueError):
                faulthandler.enable()
        if not hasattr(os, "memfd_create"):
            return  # nor is there a /proc to read it from
        self._file = os.fdopen(os.memfd_create("core-watch"), "w")
        faulthandler.register(SIGNAL, self._file, all_threads=True, chain=True)

    def close(self) -> None:
        """Write no more."""
        faulthandler.unregister(SIGNAL)
        if self._file is not None:
            self._file.close()
            self._file = None
