"""The worker's side: one rank, in a process that Ray has made, and where it hears of the others."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import io
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from core import WorkerError
from core.cluster import reserve_port
from core.launch import LaunchedCall, WorkerFailure, exit_on_signal, write_result
from core_ray import library

if TYPE_CHECKING:
    from collections.abc import Mapping


class Place(NamedTuple):
    """The location of a rank.

    Attributes:
        node_id: Ray's name of its node.
        pid: of its process.
        devices: indices of the GPUs that Ray has given it.
        port: a TCP port of this node that was free.
    """

    node_id: str
    pid: int
    devices: tuple[str, ...]
    port: int


class Ending(NamedTuple):
    """The end of a rank's work.

    Attributes:
        exit_code: 0 if the function came to its end; else what the process would have exited with.
        result: rank 0's, pickled.
        report: the exception that ended it.
        has_left: it ended by `sys.exit(0)`, before the function's end.
    """

    exit_code: int
    result: bytes | None = None
    report: WorkerFailure | None = None
    has_left: bool = False


class News(NamedTuple):
    """A message of the main process to a rank that works.

    Attributes:
        signal: to be answered as if it had come here.
        message: why the rank is to end.
        rank: that ended first.
    """

    signal: int | None = None
    message: str = ""
    rank: int = 0


class Mailbox:
    """A Ray actor that keeps news for ranks, which wait there: they work in their main thread, and
    answer no calls.
    """

    def __init__(self) -> None:
        self._boxes: dict[int, asyncio.Queue[News]] = collections.defaultdict(asyncio.Queue)

    async def post(self, rank: int, news: News) -> None:
        """Main process. Leave news for a rank."""
        await self._boxes[rank].put(news)

    async def wait(self, rank: int) -> News:
        """A rank. The next news."""
        return await self._boxes[rank].get()


class RankActor:
    """A Ray actor. All of its methods run in the process's main thread, one after the other."""

    def __init__(self, number: int, mailbox: Any) -> None:
        self._number, self._mailbox = number, mailbox
        self._is_running = False
        self._news: News | None = None

    def begin(self) -> Place:
        """Return where this is. From here on signals are exceptions."""
        ray = library.load()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, exit_on_signal)
        signal.signal(signal.SIGIO, self._on_news)
        # Ray's processes, and so its workers, block Ctrl-C.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        threading.Thread(target=self._hear, name="hear of other ranks", daemon=True).start()
        node = ray.get_runtime_context().get_node_id()
        return Place(
            node, os.getpid(), tuple(map(str, ray.get_gpu_ids())), reserve_port(self, host="")
        )

    def run(self, call: bytes, world: Mapping[str, int], variables: Mapping[str, str]) -> Ending:
        """Call the function. Whatever ends it is part of the answer, so that Ray's own errors mean
        a lost process.
        """
        os.environ.update(variables)
        try:
            self._is_running = True
            self._answer()
            outcome = LaunchedCall.read(io.BytesIO(call)).run(**world)
            file = io.BytesIO()
            if world["global_rank"] == 0:
                write_result(outcome, file, pickle_module=library.load("ray.cloudpickle"))
            return Ending(0, file.getvalue())
        except SystemExit as error:
            return _left(error)
        except KeyboardInterrupt:
            return Ending(128 + signal.SIGINT)
        except BaseException as error:
            return Ending(1, report=WorkerFailure.of(error))
        finally:
            self._is_running = False

    def _hear(self) -> None:
        """Wait for news, in a thread of its own, and take each to the main thread by a signal."""
        ray = library.load()
        # the mailbox is gone, and so is the main process
        with contextlib.suppress(ray.exceptions.RayError):
            while True:
                self._news = ray.get(self._mailbox.wait.remote(self._number))
                number = self._news.signal or signal.SIGIO
                if self._is_running:
                    os.kill(os.getpid(), number)

    def _answer(self) -> None:
        """Answer what came before the function began."""
        if self._news is not None and self._news.signal is not None:
            exit_on_signal(self._news.signal, None)
        self._on_news(signal.SIGIO, None)

    def _on_news(self, signum: int, frame: Any) -> None:
        # An exception that is being handled already ends this rank; a second one would hide it.
        if (
            self._is_running
            and self._news is not None
            and self._news.signal is None
            and sys.exception() is None
        ):
            raise WorkerError(self._news.message, rank=self._news.rank)


def _left(error: SystemExit) -> Ending:
    if error.code is None or error.code == 0:
        return Ending(0, has_left=True)
    return (
        Ending(error.code)
        if isinstance(error.code, int)
        else Ending(1, report=WorkerFailure.of(error))
    )
