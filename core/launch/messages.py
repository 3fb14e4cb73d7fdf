"""Messages of ranks to the main process while all is well: their warnings, and what it shows for
them.

Datagrams on a pair of sockets, apart from the line on which ends and failures are reported: a rank
that writes here may lose a message, and nothing waits for it. All ranks of a node write to one end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
from typing import TYPE_CHECKING, Any

from core.display.warnings_once import GivenWarning, WarningsOfRanks, send_warnings
from core.launch.rank import is_inherited
from core.launch.timeouts import LOOK_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARIABLE = "CORE_TALK"
_MAX_BYTES = 32_768
_WAIT_S = 1.0
"""Seconds that a rank waits to send a warning; what is drawn doesn't wait."""

_listeners: dict[str, Callable[[Any], None]] = {}
_own: list[MessageSender] = []


def on_message(subject: str, function: Callable[[Any], None]) -> None:
    """Main process. Call a function with rank 0's messages about a subject, in the thread that
    waits for ranks.

    Args:
        subject: any word but `"warning"`; a later function takes the place of an earlier one.
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
    return has_listener() and _own[0].send(subject, value, wait_s)


def has_listener() -> bool:
    """True if this process is a rank whose main process only waits for it, and draws its
    messages.
    """
    return bool(_own) and _own[0].has_listener


class MessageSender:
    """A rank's end of the sockets.

    Args:
        end: of all ranks of this node.
        rank: global rank.
        has_listener: whether the main process waits, and takes all subjects; else it takes
            warnings.

    Attributes:
        is_early: the rank runs the script, and hasn't come to the call that it was made for.
    """

    def __init__(self, end: socket.socket, rank: int, *, has_listener: bool) -> None:
        self._end, self._rank, self.has_listener = end, rank, has_listener
        self.is_early = False

    def begin(self) -> None:
        """Send the warnings of this process from now on."""
        _own[:] = [self]
        send_warnings(self._send_warning)

    def send(self, subject: str, value: object, wait_s: float = 0.0) -> bool:
        """Send one message. True if it is on its way."""
        text = json.dumps({"rank": self._rank, "subject": subject, "value": value}).encode()
        if len(text) > _MAX_BYTES:
            return False
        with contextlib.suppress(OSError):
            if _is_ready(self._end, select.POLLOUT, wait_s):
                return self._end.send(text, socket.MSG_DONTWAIT) > 0
        return False

    def _send_warning(self, given: GivenWarning) -> bool:
        return self.send(
            "early warning" if self.is_early else "warning", given.to_message(), _WAIT_S
        )


class MessageReceiver:
    """The main process's end; `theirs` is to be passed on to the ranks.

    Args:
        is_rank: whether the main process is a rank too.
    """

    def __init__(self, *, is_rank: bool) -> None:
        self._is_rank = is_rank
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._warnings = WarningsOfRanks(is_rank=is_rank)
        self._thread: threading.Thread | None = None

    def variable(self, rank: int) -> dict[str, str]:
        """The variable by which a new interpreter finds its end, before it comes to the call that
        it was made for.
        """
        number = self.theirs.fileno()
        return {VARIABLE: f"{number}:{os.fstat(number).st_ino}:{rank}"}

    def receive(self) -> None:
        """Receive messages of the ranks, until `end` is called in another thread."""
        while (message := self._next()) != b"":
            # of what shows warnings or draws: the run goes on without
            with contextlib.suppress(Exception):
                self._warnings.show() if message is None else self._take(json.loads(message))
        with contextlib.suppress(Exception):
            self._warnings.show(all_held=True)

    def _next(self) -> bytes | None:
        """The next message; None if a warning is due before, or a signal may have come."""
        wait_s = min(self._warnings.due_s, LOOK_S)
        return self._ours.recv(_MAX_BYTES) if _is_ready(self._ours, select.POLLIN, wait_s) else None

    def receive_in_thread(self) -> None:
        """Receive messages of the ranks while this thread does something else."""
        self._thread = threading.Thread(target=self.receive, name="hear ranks", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Make `receive` return, once it has received what was sent before. Idempotent."""
        with contextlib.suppress(OSError):
            self.theirs.send(b"")
        if self._thread is not None:
            self._thread.join(_WAIT_S)

    def close(self) -> None:
        """Close both ends; what is sent from now on is lost."""
        self._ours.close()
        self.theirs.close()

    def _take(self, message: Mapping[str, Any]) -> None:
        subject, rank, value = message["subject"], message["rank"], message["value"]
        if subject == "early warning" and self._is_rank:
            return  # this process has run the same lines of the script, and shown what they give
        if subject in ("warning", "early warning"):
            self._warnings.add(rank, GivenWarning.from_message(value))
        elif rank == 0 and subject in _listeners:
            _listeners[subject](value)


def _is_ready(end: socket.socket, event: int, timeout_s: float) -> bool:
    """Wait until something can be read or written. A timeout of the socket itself would be that of
    all who share it.
    """
    poll = select.poll()
    poll.register(end, event)
    return bool(poll.poll(timeout_s * 1000))


def begin_inherited() -> None:
    """Send the warnings of a new interpreter that is a rank; a process that it starts has the
    variable only.
    """
    channel, _, rank = os.environ.get(VARIABLE, "").rpartition(":")
    if not _own and is_inherited(channel):
        end = socket.socket(fileno=os.dup(int(channel.partition(":")[0])))
        sender = MessageSender(end, int(rank), has_listener=False)
        sender.is_early = True
        sender.begin()


def come_to_call() -> None:
    """A rank that runs the script again has come to the call that it was made for: its warnings are
    its own now.
    """
    for sender in _own:
        sender.is_early = False
