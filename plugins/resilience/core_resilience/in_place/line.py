"""One end of a connection on which the launcher, its processes and other nodes send messages."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SILENT_S = 20
"""Seconds after which a machine that doesn't answer any more counts as lost."""
_MOST_BYTES = 2**24
"""Bytes of a message; more than the names of all modules take."""


class MessageLine:
    """Sends and receives JSON objects, one a line.

    Args:
        end: of connected sockets.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._buffer = b""

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message; nothing happens if the other end is gone."""
        with contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Iterator[dict[str, Any]]:
        """The messages of what arrives next; waits for it.

        Raises:
            EOFError: the other end is gone, or is no `core go-on`.
        """
        try:
            data = self.socket.recv(65_536)
        except OSError:
            data = b""
        if not data or len(self._buffer) > _MOST_BYTES:
            raise EOFError
        *whole, self._buffer = (self._buffer + data).split(b"\n")
        try:
            messages = [dict(json.loads(line)) for line in whole]
        except (TypeError, ValueError, RecursionError):
            raise EOFError from None
        yield from messages

    def notice_silence(self) -> None:
        """End a line of TCP, on Linux, when the other machine is lost without a word."""
        options = {
            socket.TCP_KEEPIDLE: _SILENT_S // 4,
            socket.TCP_KEEPINTVL: _SILENT_S // 4,
            socket.TCP_KEEPCNT: 3,
        }
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in {**options, socket.TCP_USER_TIMEOUT: 1000 * _SILENT_S}.items():
            self.socket.setsockopt(socket.IPPROTO_TCP, option, value)
