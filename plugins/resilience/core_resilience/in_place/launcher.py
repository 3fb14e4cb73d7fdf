"""The launcher of `core go-on`: makes the processes, begins rounds, and sees who is lost."""

from __future__ import annotations

import os
import selectors
import signal
import time
from typing import TYPE_CHECKING, Literal

from core.cli import say
from core.cluster import reserve_port
from core.launch import GRACE_S, SignalForwarder
from core_resilience.in_place.member import Member

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core_resilience.in_place.options import Options

_LEAVES_IN_S = 30.0
"""Seconds that a process may take to leave a round; one that is stuck in native code counts as lost then."""

_DEFAULTS = {
    "OMP_NUM_THREADS": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # it prints a page for each connection to a lost rank
}
"""Variables of each process, where the user hasn't set them."""


class Launcher:
    """Runs a script in processes that go on when one of them is lost.

    Args:
        options: of the command.
        arguments: of each process: the script and what is meant for it.
        run_id: name of the run; the same command has the same.
    """

    def __init__(self, options: Options, arguments: Sequence[str], run_id: str) -> None:
        self._options, self._arguments, self._run_id = options, arguments, run_id
        self._members: list[Member] = []
        self._round = self._num_lost = 0
        self._is_running = self._is_over = self._is_signalled = False
        self._modules: list[str] = []
        self._leaves_by_s: float | None = None
        self._began_to_leave_s, self._num_microbatches = 0.0, 1
        self._failure = ""
        self._selector = selectors.DefaultSelector()

    @property
    def gave_up(self) -> bool:
        """True if more processes were lost than may be."""
        return self._num_lost > self._options.most_losses

    def run(self) -> int:
        """Run to the end. A signal is handed on, and a second one ends all.

        Returns:
            The code to exit with: 0; 1 if a process has failed, or too many were lost; 130 after Ctrl-C.

        Raises:
            SystemExit: SIGTERM has ended the run.
        """
        with SignalForwarder() as signals:
            try:
                with signals.held():
                    for _ in range(self._options.num_ranks + self._options.num_spares):
                        self._start()
                    signals.to(self)
                while not self._failure and (self._of_round() or not self._is_over):
                    self._step()
                signals.raise_for()
            except KeyboardInterrupt:
                return 128 + signal.SIGINT
            finally:
                self._end()
        if self._failure:
            say(f"core go-on: {self._failure}", err=True)
        return int(bool(self._failure))

    def forward(self, number: int) -> None:
        """Hand a signal on to all processes. No round begins any more."""
        self._is_over = self._is_signalled = True
        for member in self._members:
            member.send_signal(number)

    def _start(self) -> None:
        use: Literal["begins", "waits"] = "waits"
        if not self._round and len(self._members) < self._options.num_ranks:
            use = "begins"
        member = Member(use, self._arguments, {**_DEFAULTS, **os.environ})
        self._members.append(member)
        self._selector.register(member.descriptor, selectors.EVENT_READ, (member, self._on_end))
        self._selector.register(member.line.socket, selectors.EVENT_READ, (member, self._on_message))

    def _step(self) -> None:
        """Wait for something to happen, and answer it."""
        left_s = None if self._leaves_by_s is None else max(0.0, self._leaves_by_s - time.monotonic())
        for key, _ in self._selector.select(left_s):
            member, answer = key.data
            if member in self._members:  # it may have ended in an answer before
                answer(member)
        if self._leaves_by_s is not None and time.monotonic() >= self._leaves_by_s:
            self._leaves_by_s = None
            for member in self._of_round():
                if not member.is_ready:
                    member.send_signal(signal.SIGKILL)
        if not self._is_running and not self._is_over and not self._failure:
            self._begin_if_complete()

    def _of_round(self) -> list[Member]:
        """Those that are in the running round, or haven't left it yet; by rank."""
        return sorted((each for each in self._members if each.rank is not None), key=lambda each: each.rank or 0)

    # what processes do ----------------------------------------------------------------------------------------------

    def _on_message(self, member: Member) -> None:
        try:
            messages = list(member.line.receive())
        except EOFError:
            self._selector.unregister(member.line.socket)  # its end is seen by itself
            return
        for message in messages:
            member.is_ready = member.is_ready or "ready" in message
            member.is_done = member.is_done or "done" in message
            self._modules = message.get("modules", self._modules)
            if self._modules and ("modules" in message or "ready" in message):
                self._warm(self._members if "modules" in message else [member])
            if self._is_running and (ranks := message.get("hung")):
                self._end_hung(ranks)
            if self._is_running and (number := message.get("num_microbatches")):
                self._num_microbatches = number
                self._leave(f"Rank {member.rank} ran out of memory")
        self._is_over = self._is_over or (self._is_running and all(each.is_done for each in self._of_round()))
        for each in self._of_round() if self._is_over else []:
            if each.is_done or each.is_ready:
                each.line.send({"end": True})

    def _warm(self, members: list[Member]) -> None:
        """Let those that wait import what the script has imported by now."""
        for each in members:
            if each.rank is None and each.is_ready:
                each.line.send({"imports": self._modules})

    def _end_hung(self, ranks: list[int]) -> None:
        """Kill processes that a verdict of the watch names."""
        for each in self._of_round():
            if each.rank in ranks:
                each.send_signal(signal.SIGKILL)

    def _on_end(self, member: Member) -> None:
        code, name = self._reap(member), f"Rank {member.rank}" if member.rank is not None else "A spare"
        if self._is_over and (member.is_done or member.rank is None or self._is_signalled):
            return
        name += f" (pid {member.pid})"
        if code >= 0 or self._is_over:
            self._failure = f"{name} {_described(code)}, and the run with it."
        else:
            self._on_loss(member, f"{name} {_described(code)}")

    def _on_loss(self, member: Member, what: str) -> None:
        options = self._options
        self._num_lost += 1
        if self.gave_up:
            most = f"{options.most_losses} process{'es' * (options.most_losses != 1)}"
            self._failure = f"{what}. {most} may be lost (--max-losses), and the run ends."
            return
        if self._size_of_round(len(self._members)) < options.least_ranks:
            self._start()
        if member.rank is None:
            return
        if self._is_running:
            self._leave(what)

    def _leave(self, why: str) -> None:
        """Make all processes leave the round."""
        say(f"core go-on: {why}. All ranks leave step and group, and meet again.", err=True)
        self._is_running, self._began_to_leave_s = False, time.monotonic()
        self._leaves_by_s = self._began_to_leave_s + _LEAVES_IN_S
        for each in self._of_round():
            each.is_ready = each.is_done = False
            each.line.send({"leave": why})

    # rounds ---------------------------------------------------------------------------------------------------------

    def _begin_if_complete(self) -> None:
        """Begin a round if all that are left of the one before have left it, and those that come have come."""
        members = self._members
        stay = self._of_round()
        if not all(each.is_ready for each in (stay if self._round else members)):
            return
        come = [each for each in members if each.rank is None and each.is_ready]
        num_ranks = self._size_of_round(len(stay) + len(come))
        is_awaited = any(each.rank is None and not each.is_ready for each in members)
        if num_ranks < self._options.num_ranks and is_awaited:
            return  # for a process that is on its way
        self._leaves_by_s = None
        _number(stay, come, num_ranks)
        shared = self._shared_variables(num_ranks)
        for member in self._of_round():
            own = dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(member.rank))
            member.is_ready = member.is_done = False
            has_spares = member.rank == 0 and len(members) > num_ranks
            member.line.send({"variables": shared | own, "has_spares": has_spares})
        if self._round:
            took_s, go = time.monotonic() - self._began_to_leave_s, "es go" if num_ranks > 1 else " goes"
            say(f"core go-on: {num_ranks} process{go} on after {took_s:.2f} s.", err=True)
        self._round, self._is_running = self._round + 1, True

    def _size_of_round(self, num_there: int) -> int:
        """The processes of a round, if so many are there."""
        step = self._options.multiple_of
        return min(self._options.num_ranks, num_there) // step * step

    def _shared_variables(self, num_ranks: int) -> dict[str, str]:
        """The variables that torchrun sets for all ranks of one node."""
        self._port_owner = _Owner()
        return {
            **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(num_ranks)),
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(reserve_port(self._port_owner)),
            "CORE_NUM_MICROBATCHES": str(self._num_microbatches),
            "TORCHELASTIC_RESTART_COUNT": str(self._round),
            "TORCHELASTIC_MAX_RESTARTS": str(self._options.most_losses),
            "TORCHELASTIC_RUN_ID": self._run_id,
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }

    def _end(self) -> None:
        """End what is left, and wait for it."""
        for member in self._members:
            member.send_signal(signal.SIGTERM)
        ends_s = time.monotonic() + GRACE_S
        while self._members and (left_s := ends_s - time.monotonic()) > 0:
            for key, _ in self._selector.select(left_s):
                member, answer = key.data
                if answer == self._on_end and member in self._members:
                    self._reap(member)
                elif member in self._members:
                    self._selector.unregister(member.line.socket)
        for member in list(self._members):
            member.send_signal(signal.SIGKILL)
            self._reap(member)
        self._selector.close()

    def _reap(self, member: Member) -> int:
        """Take a process out of all that is known of it; its exit code."""
        self._selector.unregister(member.descriptor)
        if member.line.socket in self._selector.get_map():
            self._selector.unregister(member.line.socket)
        self._members.remove(member)
        return member.reap()


def _number(stay: list[Member], come: list[Member], num_ranks: int) -> None:
    """Give numbers to processes: those that stay keep theirs, unless there are fewer now; what is left over waits."""
    if any((each.rank or 0) >= num_ranks for each in stay):
        for rank, each in enumerate(stay):
            each.rank = rank if rank < num_ranks else None
    taken = {each.rank for each in stay}
    for rank, each in zip((rank for rank in range(num_ranks) if rank not in taken), come, strict=False):
        each.rank = rank


def _described(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


class _Owner:
    """Holds the port of a round until the next one."""
