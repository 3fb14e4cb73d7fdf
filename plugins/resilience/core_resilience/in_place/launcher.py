"""The launcher of `core go-on` on the first node: begins rounds, and sees who is lost."""

from __future__ import annotations

import contextlib
import secrets
import selectors
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from core.cli import say
from core.cluster import reserve_port
from core.contract import LaunchError
from core.launch import LOOK_S, SignalForwarder
from core_resilience.in_place.line import MessageLine
from core_resilience.in_place.local_node import LocalNode
from core_resilience.in_place.places import places, variables
from core_resilience.in_place.remote_node import RemoteNode
from core_resilience.in_place.token import is_proof, own_token, prove

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core_resilience.in_place.member import Member, ProcessNode
    from core_resilience.in_place.options import Options

_LEAVES_IN_S = 30.0
"""Seconds that a process may take to leave a round; one that is stuck in native code counts as lost
then.
"""
_MOST_STRANGERS = 64
"""Connections that may wait for a proof of the token; of more the oldest is closed."""


class RoundLauncher:
    """Runs a script in processes that go on when one of them is lost.

    Args:
        options: of the command.
        arguments: of each process: the script and what is meant for it.
        run_id: name of the run; the same command has the same.
    """

    def __init__(self, options: Options, arguments: Sequence[str], run_id: str) -> None:
        self._options = options
        self._run_id = run_id
        self._selector = selectors.DefaultSelector()
        self._local = LocalNode(arguments, self._selector, self)
        self._nodes: list[ProcessNode] = [self._local]
        self._nodes_of_round: list[ProcessNode] = []
        self._num_rounds = self._num_lost = 0
        self._is_running = self._is_over = self._is_signalled = False
        self._leaves_by_s: float | None = None
        self._began_to_leave_s = 0.0
        self._num_microbatches = 1
        self._modules: list[str] = []
        self._server: socket.socket | None = None
        self._strangers: dict[MessageLine, str] = {}
        self._waits_for_nodes = False
        self._failure = ""

    @property
    def gave_up(self) -> bool:
        """True if more was lost than may be."""
        return self._num_lost > self._options.most_losses

    def run(self) -> int:
        """Run to the end. A signal is handed on, and a second one ends all.

        Returns:
            The code to exit with: 0; 1 if a process has failed, or too many were lost; 130 after
            Ctrl-C.

        Raises:
            SystemExit: SIGTERM has ended the run.
        """
        with SignalForwarder() as signals:
            try:
                if self._options.num_nodes > 1:
                    self._listen()
                with signals.held():
                    self._start_processes(self._local)
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
        for member in self._members():
            member.send_signal(number)

    def _step(self) -> None:
        """Wait for something to happen, and answer it."""
        left_s = (
            LOOK_S if self._leaves_by_s is None else max(0.0, self._leaves_by_s - time.monotonic())
        )
        for key, _ in self._selector.select(min(left_s, LOOK_S)):
            key.data()
        if self._leaves_by_s is not None and time.monotonic() >= self._leaves_by_s:
            self._leaves_by_s = None
            for member in self._of_round():
                if not member.is_ready:
                    member.send_signal(signal.SIGKILL)
        if not self._is_running and not self._is_over and not self._failure:
            self._begin_if_complete()

    def _members(self) -> list[Member]:
        return [member for node in self._nodes for member in node.members]

    def _of_round(self) -> list[Member]:
        """Those that are in the round, or were in the one before, and haven't ended."""
        return [member for member in self._members() if member.rank is not None]

    # nodes ----------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Accept the launchers of other nodes from now on, at the address that is named, and
        nowhere else.
        """
        self._token = own_token()
        host = self._options.main_address
        port = self._options.main_port
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            server = socket.create_server(address, family=family)
        except OSError as error:
            raise LaunchError(
                f"core go-on can't listen on port {port} of {host}: {error}. Pass another "
                "--main-port, and an address of this machine as --main-address."
            ) from error
        self._server = server
        self._selector.register(server, selectors.EVENT_READ, self._on_stranger)

    def _on_stranger(self) -> None:
        """Ask whoever has connected for a proof of the token. Until it has come, nobody waits for
        it or heeds it.
        """
        assert self._server is not None, "it has called"
        with contextlib.suppress(OSError):  # it may be gone already
            line = MessageLine(self._server.accept()[0])
            line.notice_silence()
            self._strangers[line] = secrets.token_hex()
            line.send({"nonce": self._strangers[line]})
            self._selector.register(
                line.socket, selectors.EVENT_READ, lambda: self._on_answer(line)
            )
            if len(self._strangers) > _MOST_STRANGERS:
                self._refuse(next(iter(self._strangers)))

    def _on_answer(self, line: MessageLine) -> None:
        """Prove to a node that has the token that this is its launcher, and start its processes."""
        try:
            answers = list(line.receive())
        except EOFError:
            self._refuse(line)
            return
        if not answers:
            return
        if not is_proof(answers[0].get("proof"), self._token, "node", self._strangers[line]):
            self._refuse(line)
            return
        del self._strangers[line]
        line.send({"proof": prove(self._token, "launcher", answers[0].get("nonce"))})
        node = RemoteNode(line, self)
        self._nodes.append(node)
        self._selector.modify(line.socket, selectors.EVENT_READ, lambda: self._read(node))
        self._start_processes(node)

    def _refuse(self, line: MessageLine) -> None:
        del self._strangers[line]
        self._selector.unregister(line.socket)
        line.socket.close()

    def _read(self, node: RemoteNode) -> None:
        if not node.read():
            self._selector.unregister(node.line.socket)
            node.line.socket.close()
            self._nodes.remove(node)
            if node in self._nodes_of_round and not self._is_over:
                self._lose(f"Node {self._nodes_of_round.index(node)} was lost")

    def _start_processes(self, node: ProcessNode) -> None:
        for number in range(self._options.num_devices + self._options.num_spares):
            node.start(waits=self._num_rounds > 0 or number >= self._options.num_devices)

    # what processes do ----------------------------------------------------------------------------

    def on_message(self, member: Member, message: dict[str, Any]) -> None:
        """A process is ready, or done, or says what it needs."""
        if "ready" in message:
            member.is_ready = True
            self._warm([member])
            self._grow(member.node)
        elif "done" in message:
            member.is_done = True
            self._is_over = self._is_over or (
                self._is_running and all(each.is_done for each in self._of_round())
            )
        elif "modules" in message:
            self._modules = message["modules"]
            self._warm(self._members())
        elif self._is_running and "hung" in message:
            for each in self._of_round():
                if each.rank in message["hung"]:
                    each.send_signal(signal.SIGKILL)
        elif self._is_running and "num_microbatches" in message:
            self._num_microbatches = message["num_microbatches"]
            self._leave(f"Rank {member.rank} ran out of memory")
        if self._is_over:
            for each in self._of_round():
                if each.is_done or each.is_ready:
                    each.send({"end": True})

    def on_end(self, member: Member, code: int) -> None:
        """A process has ended: it was lost if a signal has killed it."""
        name = f"Rank {member.rank}" if member.rank is not None else "A process that waited"
        ended = (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"exited with code {code}"
        )
        if self._is_over and (member.is_done or member.rank is None or self._is_signalled):
            return
        if code >= 0 or self._is_over:
            self._failure = self._failure or f"{name} {ended}, and the run with it."
        else:
            self._replace(member.node)
            self._lose(f"{name} {ended}", leaves=member.rank is not None)

    def _replace(self, node: ProcessNode) -> None:
        """Start a process in the place of a lost one, unless the others may go on with fewer."""
        options = self._options
        num_left = len(node.members) // options.multiple_of * options.multiple_of
        if options.least_devices == options.num_devices or num_left < options.least_devices:
            node.start(waits=True)

    def _lose(self, what: str, *, leaves: bool = True) -> None:
        """Count a loss, after which the others leave the round, or the run ends."""
        self._num_lost += 1
        if self.gave_up:
            self._failure = (
                f"{what}, and more than {self._options.most_losses} losses end the run "
                "(--max-losses)."
            )
        elif self._is_running and leaves:
            self._leave(what)

    def _warm(self, members: list[Member]) -> None:
        """Send those that wait the names of modules that the script has imported by now."""
        for each in members:
            if self._modules and each.rank is None and each.is_ready:
                each.send({"imports": self._modules})

    # rounds ---------------------------------------------------------------------------------------

    def _leave(self, why: str) -> None:
        """End the round: all processes leave it."""
        say(
            f"core go-on: {why}. All ranks leave their step and their group, and meet again.",
            err=True,
        )
        self._is_running = False
        self._began_to_leave_s = time.monotonic()
        self._leaves_by_s = self._began_to_leave_s + _LEAVES_IN_S
        for each in self._of_round():
            each.is_ready = each.is_done = False
            each.send({"leave": why})

    def _grow(self, node: ProcessNode) -> None:
        """Begin a round with a node that has come while there are fewer than there should be."""
        is_short = self._is_running and len(self._nodes_of_round) < self._options.num_nodes
        if (
            is_short
            and node not in self._nodes_of_round
            and all(each.is_ready for each in node.members)
        ):
            self._leave("Another node has come")

    def _begin_if_complete(self) -> None:
        """Begin a round once all that were in the one before have left it, and those that come have
        come.
        """
        if not all(each.is_ready for each in self._of_round()):
            return
        # The first round waits for all nodes; a later one goes on with those that are left.
        least_nodes = self._options.least_nodes if self._num_rounds else self._options.num_nodes
        found = places(self._nodes, self._nodes_of_round, self._options, least_nodes)
        if found is None:
            self._report_missing_nodes(least_nodes)
            return
        self._waits_for_nodes = False
        self._nodes_of_round = list(dict.fromkeys(place.member.node for place in found))
        num_nodes = len(self._nodes_of_round)
        num_local = len(found) // num_nodes
        has_spares = len(self._members()) > len(found)
        for member in self._members():
            member.rank = member.local_rank = None
        shared = self._shared_variables()
        for rank, place in enumerate(found):
            member = place.member
            member.rank, member.local_rank, member.is_ready = rank, place.local_rank, False
            own = shared | variables(place, num_nodes, num_local)
            member.send({"variables": own, "has_spares": has_spares and rank == 0})
        if self._num_rounds:
            took_s, runs = (
                time.monotonic() - self._began_to_leave_s,
                "es run" if len(found) > 1 else " runs",
            )
            say(
                f"core go-on: {len(found)} process{runs} the script again, after {took_s:.2f} s.",
                err=True,
            )
        self._num_rounds, self._is_running, self._leaves_by_s = self._num_rounds + 1, True, None

    def _report_missing_nodes(self, least_nodes: int) -> None:
        """Print once that nodes are missing, if nothing else is on its way."""
        if not self._waits_for_nodes and all(each.is_ready for each in self._members()):
            self._waits_for_nodes = True
            at = f" at {self._server.getsockname()[0]}" if self._server is not None else ""
            say(
                f"core go-on: {len(self._nodes)} of {least_nodes} nodes are there, and wait for "
                f"more{at}.",
                err=True,
            )

    def _shared_variables(self) -> dict[str, str]:
        """The variables that all ranks of a round have alike."""
        several = self._options.num_nodes > 1
        self._port_owner = _PortOwner()
        return {
            "MASTER_ADDR": self._options.main_address if several else "127.0.0.1",
            "MASTER_PORT": str(reserve_port(self._port_owner, "" if several else "127.0.0.1")),
            "TORCHELASTIC_RUN_ID": self._run_id,
            "TORCHELASTIC_RESTART_COUNT": str(self._num_rounds),
            "TORCHELASTIC_MAX_RESTARTS": str(self._options.most_losses),
            "CORE_NUM_MICROBATCHES": str(self._num_microbatches),
        }

    def _end(self) -> None:
        """End what is left here, and let other nodes end with this run's code."""
        self._local.close()
        for node in self._nodes:
            if isinstance(node, RemoteNode):
                code = 143 if self._is_signalled else 0
                node.line.send({"exit": 1 if self._failure else code})
                node.line.socket.close()
        if self._server is not None:
            self._server.close()
        self._selector.close()


class _PortOwner:
    """Holds the port of a round until the next one."""
