"""Messages of ranks to the main process while all is well: what it draws for them.

Datagrams on a pair of sockets, apart from the line on which ends and failures are reported: a rank
that writes here may lose a message, and nothing waits for it. All ranks of a node write to one end.
"""

from __future__ import annotations

import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_BYTES = 32_768
_LISTENS_S = 0.05

_listeners: dict[str, Callable[[Any], None]] = {}
_own: list[tuple[socket.socket, int]] = []


def on_message(subject: str, function: Callable[[Any], None]) -> None:
    """Main process. Call a function with rank 0's messages about a subject, in the thread that
    waits for ranks.

    Args:
        subject: any word; a later function takes the place of an earlier one.
        function: takes a plain value. What it raises is lost.
    """
    _listeners[subject] = function


def send_to_main(subject: str, value: object, *, wait_s: float = 0.0) -> bool:
    """A rank. Send the main process a message that it may miss; returns True if it has a listener.

    Args:
        subject: as `on_message` knows it.
        value: plain: what JSON can hold, up to 32 KiB.
        wait_s: seconds to wait where the main process is behind with listening; then the message is
            lost.
    """
    for end, rank in _own:
        text = json.dumps({"rank": rank, "subject": subject, "value": value}).encode()
        end.settimeout(wait_s)
        with contextlib.suppress(OSError):  # it is too long, or the main process is behind
            return end.send(text) > 0
    return False


def has_listener() -> bool:
    """True if this process is a rank whose main process only waits for it, and draws its
    messages.
    """
    return bool(_own)


def begin_to_send(end: socket.socket, rank: int) -> None:
    """A rank. Send what this process gives `send_to_main` from now on.

    Args:
        end: of the sockets, that of all ranks of this node.
        rank: global rank.
    """
    _own[:] = [(end, rank)]


class MessageReceiver:
    """The main process's end; `theirs` is to be passed on to the ranks."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ours.settimeout(_LISTENS_S)

    def receive(self) -> bool:
        """Call who listens to the next message of rank 0; False if none comes soon."""
        try:
            message = json.loads(self._ours.recv(_MAX_BYTES))
        except TimeoutError:
            return False
        if message["rank"] == 0 and message["subject"] in _listeners:
            # of what draws: the run goes on without
            with contextlib.suppress(Exception):
                _listeners[message["subject"]](message["value"])
        return True

    def close(self) -> None:
        """Close both ends; what is sent from now on is lost."""
        self._ours.close()
        self.theirs.close()
