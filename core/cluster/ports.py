"""TCP ports that stay free until their server begins."""

from __future__ import annotations

import socket
import weakref


def reserve_port(owner: object, host: str = "127.0.0.1") -> int:
    """A free TCP port of this machine that no other process is given as long as `owner` lives.

    The port is bound and not listened on: the system gives it to nobody who asks for any free port,
    and to no outgoing connection. A server that sets `SO_REUSEADDR`, as torch's store does, can
    listen there all the same.

    Args:
        owner: an object of the process in which the server will be, or of its parent. The
            reservation ends with it.
        host: the address to bind; an empty one stands for all of this machine.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    weakref.finalize(owner, held.close)
    return int(held.getsockname()[1])
