"""Threads, processes and files that hivemind leaves behind, and their end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import warnings
from multiprocessing import connection, resource_sharer
from typing import TYPE_CHECKING, Any

from core_hivemind.errors import PeersError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LOCK_TIMEOUT_S = 1.0
_FREE_EVERY_S = 0.5
_END_TIMEOUT_S = 5.0
_SIGNAL_WHEN_PARENT_ENDS = 1  # PR_SET_PDEATHSIG of linux/prctl.h


@contextlib.contextmanager
def ends_with_parent() -> Iterator[None]:
    """In a child. A context that leaves no p2pd and no socket, also when the parent is killed.

    hivemind's children would go on without it, and so would p2pd, and be taken for a peer. What is
    sent to the parent's process group, such as Ctrl-C, or SIGTERM by `timeout`, is the parent's to
    answer: it still needs them, and p2pd.
    """
    made = _note_clients()
    # hivemind's own, which would end it under "error"
    warnings.simplefilter("ignore", DeprecationWarning)

    def end(number: int, frame: Any) -> None:
        _close_all(made)
        os._exit(0)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    if sys.platform == "linux":
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_SIGNAL_WHEN_PARENT_ENDS, signal.SIGTERM)
    try:
        yield
    finally:
        _close_all(made)


def _note_clients() -> list[Any]:
    """The clients of p2pd that are made in this process from now on."""
    from hivemind.p2p import P2P

    made: list[Any] = []
    init = P2P.__init__

    def noting(self: Any) -> None:
        init(self)
        made.append(self)

    P2P.__init__ = noting
    return made


def _close_all(clients: list[Any]) -> None:
    """End the p2pd that they have started, if they have, and remove the sockets to it and to this
    process.
    """
    if (own := resource_sharer._resource_sharer._address) is not None:  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            os.remove(own)
    for client in clients:
        daemon = client._child
        sockets = [getattr(client, "_client_listen_maddr", None)]
        if daemon is not None:
            sockets.append(client._daemon_listen_maddr)
            with contextlib.suppress(OSError):
                os.kill(daemon.pid, signal.SIGKILL)
                os.waitpid(daemon.pid, 0)
        for address in filter(None, sockets):
            with contextlib.suppress(OSError):
                os.remove(address["unix"])


class ChildExits:
    """Frees this process, when a child has ended, from waiting for its answers: hivemind waits
    without limit.

    Args:
        children: hivemind's processes.
    """

    def __init__(self, children: Sequence[Any]) -> None:
        self._children = children
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, name="watch over hivemind's processes", daemon=True
        )
        self._thread.start()

    def _watch(self) -> None:
        ended = connection.wait([child.sentinel for child in self._children])
        for child in self._children:
            if child.sentinel in ended:
                child.join(_END_TIMEOUT_S)  # so that whoever is freed finds it dead
        while not self._is_over.is_set():
            _free_waits()
            self._is_over.wait(_FREE_EVERY_S)

    def end(self) -> None:
        """To be called before the children are ended by this process."""
        self._is_over.set()

    def join(self) -> None:
        """Wait for the thread, once a child has ended."""
        self._thread.join(5)


def _free_waits() -> None:
    """End each wait for an answer of a child by an error."""
    from hivemind.utils.mpfuture import MPFuture

    for reference in list(MPFuture._active_futures.values()):
        future = reference()
        if future is not None and not future.done():
            with contextlib.suppress(Exception):  # an answer that has come meanwhile
                future.set_exception(
                    PeersError("A process of this peer has ended, which was to answer.")
                )


@contextlib.contextmanager
def between_answers() -> Iterator[None]:
    """A context in which no child holds a lock that it shares with the others and with this
    process.

    A child that is killed with one keeps it: no future of the next run would be answered.
    """
    from hivemind.utils.mpfuture import MPFuture, SharedBytes

    with contextlib.ExitStack() as held:
        for lock in (SharedBytes._lock, MPFuture._initialization_lock, MPFuture._update_lock):
            if lock.acquire(timeout=_LOCK_TIMEOUT_S):
                held.callback(lock.release)
        yield


def end_future_thread() -> None:
    """End the thread by which this process hears of hivemind's futures; the next future starts
    another one.

    To be called when no child is left: locks that they shared are made anew, lest one was killed
    with them.
    """
    from hivemind.utils.mpfuture import MPFuture, UpdateType

    thread = MPFuture._pipe_waiter_thread
    pipe = MPFuture._global_sender_pipe
    pid = MPFuture._active_pid
    MPFuture.reset_backend()
    if thread is None or pipe is None or pid != os.getpid():
        return
    MPFuture._pipe_waiter_thread = None
    pipe.send((0, UpdateType.CANCEL, None))  # it looks at the above after each message
    thread.join(5)
    pipe.close()
    resource_sharer.stop(timeout=5)  # the thread that hands file descriptors to children
