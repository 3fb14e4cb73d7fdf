"""A process of the run, on any node, as the launcher sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


class ProcessNode(Protocol):
    """A machine on which processes are started."""

    members: list[Member]

    def start(self, *, waits: bool) -> None:
        """Start a process, a member from then on; one that waits takes the place of another."""

    def send(self, number: int, message: Mapping[str, Any]) -> None:
        """Send a message to the process of this number."""

    def send_signal(self, number: int, signum: int) -> None:
        """Send a signal to the process of this number, and its children."""


class Listener(Protocol):
    """Listener to the members of nodes."""

    def on_message(self, member: Member, message: dict[str, Any]) -> None:
        """A process has sent a message."""

    def on_end(self, member: Member, code: int) -> None:
        """A process has ended, and isn't a member of its node any more; `code` is negative for a
        signal.
        """


@dataclass(eq=False)
class Member:
    """A process of the run.

    Attributes:
        node: on which it runs.
        number: of the process on its node.
        rank: in the round; None for one that waits for the next.
        local_rank: likewise, on its node.
        is_ready: it waits for a round to begin.
        is_done: it has come to the script's end.
    """

    node: ProcessNode
    number: int
    rank: int | None = None
    local_rank: int | None = None
    is_ready: bool = False
    is_done: bool = False

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message to it."""
        self.node.send(self.number, message)

    def send_signal(self, signum: int) -> None:
        """Send a signal to it, and its children."""
        self.node.send_signal(self.number, signum)
