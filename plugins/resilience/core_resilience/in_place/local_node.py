"""The processes of this node."""

from __future__ import annotations

import selectors
import signal
import time
from typing import TYPE_CHECKING, Any

from core.launch import GRACE_S
from core_resilience.in_place.member import Listener, Member
from core_resilience.in_place.process import Process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class LocalNode:
    """Starts processes on this node, and calls a listener with what they say and how they end.

    Args:
        arguments: of each process: the script and what is meant for it.
        selector: whose keys have a function as data, to be called when they are ready.
        listener: called in these functions.
    """

    def __init__(
        self, arguments: Sequence[str], selector: selectors.BaseSelector, listener: Listener
    ) -> None:
        self.members: list[Member] = []
        self._arguments, self._selector, self._listener = arguments, selector, listener
        self._processes: dict[int, Process] = {}
        self._num_started = 0

    def start(self, *, waits: bool) -> None:
        """Start a process, a member from then on; one that waits takes the place of another."""
        process = Process(["waits" if waits else "begins", *self._arguments])
        member = Member(self, self._num_started)
        self._num_started += 1
        self._processes[member.number] = process
        self.members.append(member)
        read = selectors.EVENT_READ
        self._selector.register(process.line.socket, read, lambda: self._on_message(member))
        self._selector.register(process.descriptor, read, lambda: self._on_end(member))

    def send(self, number: int, message: Mapping[str, Any]) -> None:
        """Send a message to the process of this number."""
        if number in self._processes:
            self._processes[number].line.send(message)

    def send_signal(self, number: int, signum: int) -> None:
        """Send a signal to the process of this number, and its children."""
        if number in self._processes:
            self._processes[number].send_signal(signum)

    def close(self) -> None:
        """End what is left, and wait for it."""
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        with selectors.DefaultSelector() as ends:
            for member in self.members:
                ends.register(
                    self._processes[member.number].descriptor, selectors.EVENT_READ, member
                )
            deadline_s = time.monotonic() + GRACE_S
            while self._processes and (left_s := deadline_s - time.monotonic()) > 0:
                for key, _ in ends.select(left_s):
                    ends.unregister(key.fileobj)
                    self._reap(key.data)
        for member in list(self.members):
            self._reap(member)

    def _on_message(self, member: Member) -> None:
        if (process := self._processes.get(member.number)) is None:
            return
        try:
            messages = list(process.line.receive())
        except EOFError:
            self._selector.unregister(process.line.socket)  # its end is seen by itself
            return
        for message in messages:
            self._listener.on_message(member, message)

    def _on_end(self, member: Member) -> None:
        if member.number in self._processes:
            self._listener.on_end(member, self._reap(member))

    def _reap(self, member: Member) -> int:
        """Forget a process that has ended; returns its exit code."""
        process = self._processes.pop(member.number)
        self._selector.unregister(process.descriptor)
        if process.line.socket in self._selector.get_map():
            self._selector.unregister(process.line.socket)
        self.members.remove(member)
        return process.reap()
