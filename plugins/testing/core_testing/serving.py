"""A rank of a pool: runs the calls it gets, and puts back what they have changed."""

from __future__ import annotations

import gc
import io
import pickle
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from core.watch import end as end_watch
from core_testing import surroundings
from core_testing.footprint import Footprint
from core_testing.limit import end_after, end_never

if TYPE_CHECKING:
    from collections.abc import Callable

    from core import ClusterEnvironment

CLEAN_UP = b""
"""The message after which a rank cleans up, when all ranks are done. Others are pickled calls."""

_END_S = 20
_GRACE_S = 0.05
"""Time for the threads of a group that was left behind to let go of its last tensors."""
_STANDING = ("process_group", "child_processes", "threads")
_NOT_OF_PYTHON = "Dummy-"


@dataclass(frozen=True)
class Call:
    """A function that all ranks call.

    Attributes:
        function: called with the rank, and then with `args`.
        args: for it.
        timeout_s: after which ranks that hang are ended.
        settings: of the process that asks, which a fork of it would have too.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    timeout_s: float
    settings: surroundings.Settings

    def pickled(self) -> bytes | None:
        """The call in bytes, for ranks that run already; None if a part of it doesn't pickle."""
        try:
            return pickle.dumps(self)
        except Exception:  # whatever the objects of an author raise
            return None


def serve(address: str, environment: ClusterEnvironment, make_rank: Callable[[], Any]) -> None:
    """A rank's whole life: until the other end hangs up, or a call raises."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(address)
    with Connection(line.detach()) as end:
        end.send(environment.global_rank())
        server = _Server(make_rank())
        while (message := _next(end)) is not None:
            answer = server.answer(message)
            # another rank has failed meanwhile, and it is that one's error to tell
            with suppress(BrokenPipeError):
                end.send_bytes(answer)
    end_after(_END_S)


def _next(end: Connection) -> bytes | None:
    """The next message; None if the other end has hung up."""
    try:
        return end.recv_bytes()
    except EOFError:
        return None


class _Server:
    """Answers messages.

    Args:
        rank: the first argument of what is called.
    """

    def __init__(self, rank: Any) -> None:
        self._rank = rank
        self._own = self._wanted = surroundings.copy_all()
        self._before = Footprint.take(with_ports=False)

    def answer(self, message: bytes) -> bytes:
        """The result of a call, written by `torch.save`; or a pickled list of what can't be cleaned
        up.
        """
        return self._clean_up() if message == CLEAN_UP else self._run(pickle.loads(message))

    def _run(self, call: Call) -> bytes:
        # Settings that mean something to one process only, such as signal handlers, stay the rank's
        # own.
        self._wanted = self._own | call.settings
        surroundings.restore(call.settings)
        end_after(call.timeout_s)
        result = io.BytesIO()
        torch.save(call.function(self._rank, *call.args), result)
        end_never()  # a rank that waits for others isn't the one that hangs
        return result.getvalue()

    def _clean_up(self) -> bytes:
        end_after(_END_S)
        gc.collect()
        if dist.is_available() and dist.is_initialized():
            time.sleep(_GRACE_S)
            end_watch()
            dist.destroy_process_group()
            gc.collect()
        left = surroundings.restore(self._wanted)
        now = Footprint.take(with_ports=False)
        for kind in _STANDING:
            left += [
                thing
                for thing in now.beyond(self._before, kind)
                if not thing.startswith(_NOT_OF_PYTHON)
            ]
        end_never()
        return pickle.dumps(left)
