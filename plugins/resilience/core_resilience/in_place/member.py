"""A process of the run, as the launcher sees it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Literal

from core_resilience.in_place.line import Line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Member:
    """A process, in a process group of its own, which ends with this one.

    Args:
        use: waits if it takes the place of another one.
        arguments: the script, and what is meant for it.
        variables: its environment.

    Attributes:
        line: to it.
        rank: in the running round; None outside of one.
        is_ready: it waits for a round to begin.
        is_done: it has come to the script's end.
        descriptor: becomes readable when the process ends.
    """

    def __init__(self, use: Literal["begins", "waits"], arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        self._life, life = socket.socketpair()
        with theirs, life:
            ends = [theirs.fileno(), life.fileno()]
            program = ["-u", "-m", "core_resilience.in_place.rank_program", str(ends[0]), use]
            # What the kernel sends it when this process is gone ends it, and its children.
            fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
            self._process = subprocess.Popen(
                [sys.executable, *program, *arguments], env=variables, pass_fds=ends, start_new_session=True
            )
            fcntl.fcntl(life, fcntl.F_SETOWN, -self._process.pid)
        self.line = Line(ours)
        self.rank: int | None = None
        self.is_ready = self.is_done = False
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
