"""The worker's side: one rank, in a process that Monarch has made, whose main thread runs the
function.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from core import WorkerError
from core.cluster import reserve_port
from core.launch import LaunchedCall, WorkerFailure, exit_on_signal, write_result
from core_monarch import library

if TYPE_CHECKING:
    from collections.abc import Mapping


class MonarchPlace(NamedTuple):
    """The location of a rank.

    Attributes:
        host: name of its machine.
        pid: of its process.
        port: a TCP port of this machine that was free.
    """

    host: str
    pid: int
    port: int


class MonarchEnding(NamedTuple):
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


class MonarchNews(NamedTuple):
    """A message of the main process to a rank that works.

    Attributes:
        signal: to be answered as if it had come here.
        message: why the rank is to end.
        rank: that ended first.
    """

    signal: int | None = None
    message: str = ""
    rank: int = 0


class RankProcess:
    """One rank's process. `begin` and `run` are called in its main thread, `post` in any."""

    def __init__(self) -> None:
        self._is_running = False
        self._news: MonarchNews | None = None

    def begin(self, paths: list[str]) -> MonarchPlace:
        """Find modules where the main process does, and hear signals from here on. Returns where
        this is.
        """
        sys.path += [path for path in paths if path not in sys.path]
        # the main process hears it too, and hands it on
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGIO, self._on_news)
        return MonarchPlace(socket.gethostname(), os.getpid(), reserve_port(self, host=""))

    def run(
        self, call: bytes, world: Mapping[str, int], variables: Mapping[str, str]
    ) -> MonarchEnding:
        """Call the function. Whatever ends it is part of the answer: an error of Monarch's means a
        lost process.
        """
        os.environ.update(variables)
        try:
            self._is_running = True
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, exit_on_signal)
            self._on_news(signal.SIGIO, None)  # what came before
            launched = LaunchedCall.read(io.BytesIO(call))
            _share_cores(int(variables["LOCAL_WORLD_SIZE"]))
            outcome = launched.run(**world)
            file = io.BytesIO()
            if world["global_rank"] == 0:
                write_result(outcome, file, pickle_module=library.load("cloudpickle"))
            return MonarchEnding(0, file.getvalue())
        except SystemExit as error:
            return _left(error)
        except KeyboardInterrupt:
            return MonarchEnding(128 + signal.SIGINT)
        except BaseException as error:
            return MonarchEnding(1, report=WorkerFailure.of(error))
        finally:
            self._is_running = False
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)

    def post(self, news: MonarchNews) -> None:
        """Report news to the main thread, by a signal."""
        self._news = news
        os.kill(os.getpid(), signal.SIGIO)

    def _on_news(self, number: int, frame: Any) -> None:
        if not self._is_running or self._news is None:
            return
        if self._news.signal is not None:
            number, self._news = self._news.signal, None
            signal.raise_signal(number)  # to the handler that is there, perhaps the Trainer's
        # An exception that is being handled already ends this rank; a second one would hide it.
        elif sys.exception() is None:
            raise WorkerError(self._news.message, rank=self._news.rank)


def _share_cores(num_processes: int) -> None:
    """Give this process its share of the host's cores, unless the user has chosen with
    `OMP_NUM_THREADS`.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(
            max(1, min(torch.get_num_threads(), len(os.sched_getaffinity(0)) // num_processes))
        )


def _left(error: SystemExit) -> MonarchEnding:
    if error.code is None or error.code == 0:
        return MonarchEnding(0, has_left=True)
    return (
        MonarchEnding(error.code)
        if isinstance(error.code, int)
        else MonarchEnding(1, report=WorkerFailure.of(error))
    )
