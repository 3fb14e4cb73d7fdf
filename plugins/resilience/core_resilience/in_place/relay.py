"""`core go-on` on a node other than the first: starts processes as the first node's launcher
says.
"""

from __future__ import annotations

import secrets
import selectors
import signal
import socket
import time
from typing import TYPE_CHECKING, Any, NoReturn

from core.cli import say
from core.contract import LaunchError
from core.launch import LOOK_S, SignalForwarder
from core_resilience.in_place.line import MessageLine
from core_resilience.in_place.local_node import LocalNode
from core_resilience.in_place.token import VARIABLE, is_proof, own_token, prove

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core_resilience.in_place.member import Member

_COMES_IN_S = 600.0
"""Seconds in which the first node's launcher has to be there."""
_ANSWERS_IN_S = 60.0
"""Seconds in which it has to answer then."""
_SAYS_AFTER_S = 30.0
"""Seconds after which this node says that it waits for it."""


class Relay:
    """Runs this node's processes for the launcher of the first node, and ends with it.

    Args:
        arguments: of each process.
        address: host name and port of the launcher.
    """

    def __init__(self, arguments: Sequence[str], address: tuple[str, int]) -> None:
        self._selector = selectors.DefaultSelector()
        self._node = LocalNode(arguments, self._selector, self)
        self._address = address
        self._nonce = secrets.token_hex()
        self._is_known = self._is_over = False
        self._code = 1

    def run(self) -> int:
        """Run until the launcher says how the run has ended, or is gone.

        Returns:
            The launcher's own code to exit with; 1 if it is gone, 130 after Ctrl-C.

        Raises:
            LaunchError: there is no launcher, or none that has this node's token.
        """
        self._token = own_token()
        with SignalForwarder() as signals:
            try:
                self._line = MessageLine(_connect(self._address))
                self._line.notice_silence()
                self._selector.register(self._line.socket, selectors.EVENT_READ, self._on_order)
                signals.to(self)
                while not self._is_over:
                    ready = self._selector.select(LOOK_S if self._is_known else _ANSWERS_IN_S)
                    if not ready and not self._is_known:
                        self._refuse("says nothing")
                    for key, _ in ready:
                        key.data()
                signals.raise_for()
            except KeyboardInterrupt:
                return 128 + signal.SIGINT
            finally:
                self._node.close()
        return self._code

    def forward(self, number: int) -> None:
        """Hand a signal on to all processes of this node."""
        for member in self._node.members:
            member.send_signal(number)

    def on_message(self, member: Member, message: dict[str, Any]) -> None:
        """Hand it on to the launcher."""
        self._line.send({"of": member.number, "message": message})

    def on_end(self, member: Member, code: int) -> None:
        """Hand it on to the launcher."""
        self._line.send({"of": member.number, "code": code})

    def _on_order(self) -> None:
        try:
            orders = list(self._line.receive())
        except EOFError:
            if not self._is_known:
                self._refuse("has closed the connection")
            say("core go-on: The first node is gone, and this one ends.", err=True)
            self._is_over = True
            return
        for order in orders:
            if not self._is_known:
                self._get_to_know(order)
            elif "start" in order:
                self._node.start(waits=order["start"])
            elif "signal" in order:
                self._node.send_signal(order["to"], order["signal"])
            elif "message" in order:
                self._node.send(order["to"], order["message"])
            else:
                self._code = order["exit"]
                self._is_over = True

    def _get_to_know(self, order: dict[str, Any]) -> None:
        """Prove to the launcher that this node has its token. Nothing else that it says is heeded
        before it has too.
        """
        if "nonce" in order:
            self._line.send(
                {"nonce": self._nonce, "proof": prove(self._token, "node", order["nonce"])}
            )
            return
        self._is_known = is_proof(order.get("proof"), self._token, "launcher", self._nonce)
        if not self._is_known:
            self._refuse("doesn't know it")

    def _refuse(self, what: str) -> NoReturn:
        host, port = self._address
        raise LaunchError(
            f"core go-on: expected at {host}:{port} the launcher of node 0 with this node's token, "
            f"and what is there {what}. Where nodes don't share the user's home, set {VARIABLE} to "
            "the same secret on all of them. If another program has the port, pass another "
            "--main-port on all nodes."
        )


def _connect(address: tuple[str, int]) -> socket.socket:
    began_s = time.monotonic()
    waits = False
    while True:
        try:
            return socket.create_connection(address, timeout=None)
        except OSError as error:
            waited_s = time.monotonic() - began_s
            if waited_s > _COMES_IN_S:
                raise LaunchError(
                    f"core go-on found no launcher at {address[0]}:{address[1]} within "
                    f"{_COMES_IN_S:.0f} s: {error}. Start it on the first node, with --node-rank 0 "
                    "and the same --main-port."
                ) from error
            if waited_s > _SAYS_AFTER_S and not waits:
                waits = True
                say(
                    f"core go-on: No launcher of node 0 is at {address[0]}:{address[1]} yet. This "
                    "node waits.",
                    err=True,
                )
        time.sleep(0.2)
