"""The processes of another node, whose own `core go-on` starts them and hands on what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core_resilience.in_place.member import Listener, Member

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core_resilience.in_place.line import MessageLine


class RemoteNode:
    """Another node, at the end of a line.

    Args:
        line: to its `Relay`.
        listener: called with what processes say and how they end.
    """

    def __init__(self, line: MessageLine, listener: Listener) -> None:
        self.members: list[Member] = []
        self.line = line
        self._listener = listener
        self._num_started = 0

    def start(self, *, waits: bool) -> None:
        """Start a process, a member from then on; one that waits takes the place of another."""
        self.members.append(Member(self, self._num_started))
        self._num_started += 1
        self.line.send({"start": waits})

    def send(self, number: int, message: Mapping[str, Any]) -> None:
        """Send a message to the process of this number."""
        self.line.send({"to": number, "message": message})

    def send_signal(self, number: int, signum: int) -> None:
        """Send a signal to the process of this number, and its children."""
        self.line.send({"to": number, "signal": signum})

    def read(self) -> bool:
        """Hand on what has arrived. Returns False once the node is lost, and its processes with
        it.
        """
        try:
            messages = list(self.line.receive())
        except EOFError:
            return False
        for message in messages:
            member = next((each for each in self.members if each.number == message.get("of")), None)
            if member is not None and "code" in message:
                self.members.remove(member)
                self._listener.on_end(member, message["code"])
            elif member is not None:
                self._listener.on_message(member, message["message"])
        return True
