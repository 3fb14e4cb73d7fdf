"""A process of this node."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

from core_resilience.in_place.line import MessageLine

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEFAULTS = {
    "OMP_NUM_THREADS": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # it prints a page for each connection to a lost rank
}
"""Variables of each process, where the user hasn't set them."""


class Process:
    """A process, in a process group of its own, which ends with this one.

    Args:
        arguments: of the program that each process runs.

    Attributes:
        line: to it.
        descriptor: becomes readable when it ends.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        self._life, life = socket.socketpair()
        with theirs, life:
            ends = [theirs.fileno(), life.fileno()]
            command = [
                sys.executable,
                "-u",
                "-m",
                "core_resilience.in_place.rank_program",
                str(ends[0]),
                *arguments,
            ]
            # What the kernel sends it when this process is gone ends it, and its children.
            fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
            variables = {**_DEFAULTS, **os.environ}
            self._process = subprocess.Popen(
                command, env=variables, pass_fds=ends, start_new_session=True
            )
            fcntl.fcntl(life, fcntl.F_SETOWN, -self._process.pid)
        self.line = MessageLine(ours)
        self.pid = self._process.pid
        self.descriptor = os.pidfd_open(self.pid)

    def send_signal(self, number: int) -> None:
        """Send a signal to it and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def reap(self) -> int:
        """Its exit code, negative for a signal, once it has ended. Its children end too."""
        self.send_signal(signal.SIGKILL)
        self.line.socket.close()
        self._life.close()
        os.close(self.descriptor)
        return self._process.wait()
