"""One end of the sockets between the launcher and a process."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Line:
    """Sends and receives small JSON objects, one a line.

    Args:
        end: one of a pair of connected sockets.
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
            EOFError: the other end is gone.
        """
        try:
            data = self.socket.recv(65_536)
        except ConnectionError:
            data = b""
        if not data:
            raise EOFError
        *whole, self._buffer = (self._buffer + data).split(b"\n")
        yield from map(json.loads, whole)
