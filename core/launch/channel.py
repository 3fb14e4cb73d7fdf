"""A line between the main process and one worker that the kernel itself watches.

It is a pair of sockets. The worker's end has O_ASYNC: as soon as the main process writes a note, or
is gone for any reason (SIGKILL too), the kernel sends SIGIO to the worker. A worker that hasn't
come as far as to handle the signal, still importing perhaps, ends by its default action; afterwards
it becomes an exception in the main thread, so that `finally` blocks run. Nothing polls, no thread
waits, and no signal is used that users need for themselves.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_main_ends: weakref.WeakSet[Channel] = weakref.WeakSet()


class Channel:
    """One end of the line. Messages are small JSON objects; sending and receiving never block."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._buffer = b""
        self.peer_is_gone = False

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message of at most some 64 KiB. Nothing happens if the other end is gone."""
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have arrived; sets `peer_is_gone` at the end of the line."""
        try:
            data = self._socket.recv(65_536)
            while data:
                self._buffer += data
                data = self._socket.recv(65_536)
            self.peer_is_gone = True
        except BlockingIOError:
            pass
        except OSError:
            self.peer_is_gone = True
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def fileno(self) -> int:
        """The descriptor of this end."""
        return self._socket.fileno()

    def claim(self) -> None:
        """Make the kernel send SIGIO to this process; the main process may have died before it
        could arrange that.
        """
        signal_process(self._socket, os.getpid())

    def close(self) -> None:
        """Close this end. Idempotent."""
        self._socket.close()


def open_channel() -> tuple[Channel, socket.socket]:
    """The main process's end, and the worker's: a socket to pass on and then close here."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    fcntl.fcntl(theirs, fcntl.F_SETFL, fcntl.fcntl(theirs, fcntl.F_GETFL) | os.O_ASYNC)
    channel = Channel(ours)
    _main_ends.add(channel)
    return channel, theirs


def signal_process(end: socket.socket, pid: int) -> None:
    """Make the kernel send SIGIO to `pid` when something happens on its end of the line."""
    fcntl.fcntl(end, fcntl.F_SETOWN, pid)


def name_of(end: socket.socket) -> str:
    """The number of the descriptor, and its inode: a process that inherited the variable alone may
    have another file under this number.
    """
    return f"{end.fileno()}:{os.fstat(end.fileno()).st_ino}"


def _hang_up_in_fork() -> None:
    """Close the line in a forked copy of the main process, such as a loader's worker: it must not
    keep it alive.
    """
    for channel in list(_main_ends):
        channel.close()


os.register_at_fork(after_in_child=_hang_up_in_fork)
