"""Ranks that stay for the next call, so that a class of tests starts its processes once."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import tempfile
from io import BytesIO
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from core import WorkerError
from core_testing.serving import CLEAN_UP, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core import ClusterEnvironment, Launcher


class RankPool:
    """Processes, one a rank, that run one function after another.

    A keeper process launches them and waits for their end as a script would, so that this process
    stays without threads. After each call the ranks put back what it has changed. An exception, the
    death of a rank, and whatever can't be put back end all of them; then `is_over`.
    """

    def __init__(
        self, launcher: Launcher, environment: ClusterEnvironment, make_rank: Callable[[], Any]
    ) -> None:
        """Start them.

        Args:
            launcher: forks the ranks; connected.
            environment: has the rank's number.
            make_rank: called on each rank; makes the first argument of what it runs.
        """
        self.is_over = False
        self._ends: list[Connection] = []
        # The address of a socket has room for 103 bytes.
        where = tempfile.gettempdir() if len(os.fsencode(tempfile.gettempdir())) < 70 else "/tmp"
        with (
            tempfile.TemporaryDirectory(prefix="core-testing-", dir=where) as folder,
            socket.socket(socket.AF_UNIX) as server,
        ):
            address = str(Path(folder) / "ranks")
            server.bind(address)
            server.listen(launcher.num_processes)
            self._news, reports = Pipe(duplex=False)
            sys.stdout.flush()  # the ranks would write what is left in here again
            sys.stderr.flush()
            self._keeper = os.fork()
            if self._keeper == 0:
                server.close()
                _keep(reports, lambda: launcher.launch(serve, address, environment, make_rank))
            # The keeper alone holds this end now, so that its death shows as the end of the line.
            reports.close()
            with self._ending_at_errors():
                self._accept(server, launcher.num_processes)

    def call(self, call: bytes) -> list[Any]:
        """Make all ranks run a pickled `Call`. Returns the function's results, one item a rank;
        tensors on the CPU.

        Raises:
            WorkerError: a rank failed.
        """
        with self._ending_at_errors():
            # In two rounds: no rank may destroy its group while another is still in the function.
            results, left = self._ask(call), self._ask(CLEAN_UP)
            if any(map(pickle.loads, left)):
                self.close()
        # Written by our own ranks.
        return [
            torch.load(BytesIO(result), map_location="cpu", weights_only=False)
            for result in results
        ]

    def close(self) -> None:
        """Idempotent. Let the ranks end, and wait for it.

        Raises:
            WorkerError: one of them has ended badly.
        """
        if not self.is_over and (error := self._hear_the_end()) is not None:
            raise error

    def forget(self) -> None:
        """Close the lines to the ranks in a forked copy of this process, which must not keep them
        open.
        """
        self.is_over = True
        self._hang_up()

    @contextlib.contextmanager
    def _ending_at_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if not self.is_over:
                os.kill(self._keeper, signal.SIGKILL)  # its ranks hear of it, and end
                self._wait()
            raise

    def _accept(self, server: socket.socket, number: int) -> None:
        ends: dict[int, Connection] = {}
        while len(ends) < number:
            # As long as ranks are awaited, news can only be of their end.
            if self._news in wait([server, self._news]):
                self._raise_the_end(0)
            end = Connection(server.accept()[0].detach())
            ends[end.recv()] = end
        self._ends = [ends[rank] for rank in range(number)]

    def _ask(self, message: bytes) -> list[bytes]:
        """One answer a rank."""
        answers: dict[Connection, bytes] = {}
        for rank, end in enumerate(self._ends):
            with self._noticing_the_end_of(rank):
                end.send_bytes(message)
        # Only when all have been asked: the function may be collective. Answers come in any order.
        while waiting := [end for end in self._ends if end not in answers]:
            ready = wait(waiting)
            for rank, end in enumerate(self._ends):
                if end in ready:
                    with self._noticing_the_end_of(rank):
                        answers[end] = end.recv_bytes()
        return [answers[end] for end in self._ends]

    @contextlib.contextmanager
    def _noticing_the_end_of(self, rank: int) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError):
            self._raise_the_end(rank)

    def _raise_the_end(self, rank: int) -> NoReturn:
        """A rank is gone: let the others end too."""
        message = f"Rank {rank} has ended in the middle of a test, with exit code 0."
        raise self._hear_the_end() or WorkerError(message, rank=rank, exit_code=0)

    def _hear_the_end(self) -> WorkerError | None:
        """Hang up, wait until all ranks have ended, and hear from the keeper how."""
        for end in self._ends:
            end.close()
        try:
            # Closing the lines is what lets waiting ranks end, so it comes before waiting for them.
            ending = self._news.recv()
        except EOFError:
            ending = {"message": "The process that had launched the ranks was killed.", "rank": 0}
        self._wait()
        if ending is None:
            return None
        cause = ending.pop("cause", None)
        error = WorkerError(ending.pop("message"), **ending)
        error.__cause__ = cause
        return error

    def _wait(self) -> None:
        self.is_over = True
        self._hang_up()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._keeper, 0)

    def _hang_up(self) -> None:
        for end in (*self._ends, self._news):
            end.close()


def _keep(reports: Connection, launch: Callable[[], Any]) -> NoReturn:
    """The keeper's whole life."""
    try:
        reports.send(_end_of(launch))
    finally:
        os._exit(0)  # what this fork has of the main process doesn't end here


def _end_of(launch: Callable[[], Any]) -> dict[str, Any] | None:
    """None if all ranks have ended well, or else what a WorkerError is made of."""
    try:
        launch()
    except WorkerError as error:
        ending = {
            "rank": error.rank,
            "exit_code": error.exit_code,
            "worker_traceback": error.worker_traceback,
        }
        return {"message": str(error), "cause": error.__cause__, **ending}
    except BaseException as error:
        return {"message": f"The ranks were not launched: {error!r}", "rank": 0}
    return None
