"""Network connections that torch's collectives use, and can't be asked to close."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def hang_up(store_port: int) -> None:
    """Shut down the TCP connections that native code of this process holds, those of gloo among
    them.

    A rank that waits for this one in a collective then gets an error, and runs its `finally`
    blocks. Gloo has no abort, and destroying a process group closes nothing while a traceback or a
    module still refers to it. For a process that ends, or leaves its group: Python's own sockets
    stay open, since a logger may have to say something yet.

    Args:
        store_port: where the store of the ranks listens. Its connections stay too: a wait on them
            is bounded, and torch prints a page for each that breaks.
    """
    # By type: isinstance asks an object for its class, which some answer with a warning.
    kept = {each.fileno() for each in gc.get_objects() if issubclass(type(each), socket.socket)}
    for descriptor, connection in _connections():
        # Gloo aborts the process when the socket that it accepts connections on fails.
        if descriptor in kept or connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            continue
        with contextlib.suppress(OSError):
            if store_port not in (connection.getsockname()[1], connection.getpeername()[1]):
                connection.shutdown(socket.SHUT_RDWR)


def _connections() -> Iterator[tuple[int, socket.socket]]:
    """Each TCP socket of this process and its descriptor. The object is a duplicate, which is
    closed after its turn.
    """
    for descriptor in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                if (
                    connection.family in (socket.AF_INET, socket.AF_INET6)
                    and connection.type == socket.SOCK_STREAM
                ):
                    yield descriptor, connection
