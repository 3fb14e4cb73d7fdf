"""The ranks of one launch, seen from the main process: made, watched, and ended."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from core import LaunchError, WorkerError
from core.launch import GRACE_S, rank_variables, worker_error
from core_monarch import library
from core_monarch.worker import MonarchEnding, MonarchNews

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from core_monarch.worker import MonarchPlace

_START_S = 120.0
"""Seconds in which all processes begin."""
_LOOK_S = 0.2
"""Seconds after which a signal that came to the main process is handed on."""
_ECHO_S = 15.0
"""Seconds to look for the cause when a rank reports no more than a lost connection.

Monarch asks for lost processes now and then, and has named them after up to 10.
"""
_HEAR_S = 0.5
"""Seconds after which a rank that was asked to end, and goes on, is taken to wait in native
code.
"""
_END_S = 20.0
"""Seconds in which Monarch ends all processes, by force at last."""
_NAME = "core_monarch_ranks"


class MonarchRanks:
    """The actors of one launch, in the order of their ranks."""

    def __init__(self, num_processes: int) -> None:
        """Create the numbers from how many there are on each host."""
        self._num_processes = num_processes
        self._procs: Any = None
        self._actors: list[Any] = []
        self._places: list[MonarchPlace] = []
        self._endings: dict[int, MonarchEnding | WorkerError] = {}
        self._heard: int | None = None
        self._handed_on: int | None = None

    def forward(self, number: int) -> None:
        """Hand a signal on to all ranks, at the next look: this is called in a signal's handler."""
        self._heard = number

    @property
    def is_interrupted(self) -> bool:
        """True if a signal came."""
        return self._heard is not None

    def start(self, hosts: Any, variables: Mapping[str, str]) -> None:
        """Make the processes, and an actor in each.

        Args:
            hosts: Monarch's mesh of machines.
            variables: of the processes' environment, beside those of their host.

        Raises:
            LaunchError: they don't begin.
        """
        monarch, actor = library.load(), library.load("core_monarch.actor")
        command = type(monarch.default_bootstrap_cmd())(
            sys.executable, None, ["-m", "core_monarch"], variables
        )
        self._procs = hosts.spawn_procs(
            {"ranks": self._num_processes}, bootstrap_command=command, name=_NAME
        )
        actors = self._procs.spawn(_NAME, actor.MonarchActor).flatten("rank")
        try:
            self._places = [place for _, place in actors.begin.call(sys.path).get(_START_S).items()]
        except Exception as error:  # Monarch's own, of the connection or of the process
            raise LaunchError(f"Monarch's processes don't begin: {error}") from error
        self._actors = [actors.slice(rank=rank) for rank in range(len(self._places))]

    def run(self, call: bytes) -> bytes:
        """Run the pickled call on every rank. Returns rank 0's pickled result; empty if a signal
        ended the run.

        Raises:
            WorkerError: the rank that failed first; all others have ended.
        """
        first = self._places[0]
        is_here = len({place.host for place in self._places}) == 1
        meeting = {
            "MASTER_ADDR": "127.0.0.1" if is_here else first.host,
            "MASTER_PORT": str(first.port),
        }
        running = {
            rank: actor.run.call_one(call, self._world(rank), {**meeting, **self._variables(rank)})
            for rank, actor in enumerate(self._actors)
        }
        failure = self._watch(running)
        if failure is not None:
            message = (
                f"Rank {failure.rank} ended first, and this rank stops because of it. {failure}"
            )
            self._stop(running, message, failure.rank)
        if self.is_interrupted:
            return b""
        if failure is not None:
            raise failure from failure.__cause__
        ending = self._endings[0]
        assert isinstance(ending, MonarchEnding)
        return ending.result or b""

    def end(self) -> None:
        """End all processes."""
        if self._procs is not None:
            with contextlib.suppress(Exception):  # those that are gone can't be stopped
                self._procs.stop().get(_END_S)

    def _world(self, rank: int) -> dict[str, int]:
        return {
            "world_size": len(self._actors),
            "global_rank": rank,
            "local_rank": rank % self._num_processes,
            "node_rank": rank // self._num_processes,
        }

    def _variables(self, rank: int) -> dict[str, str]:
        """The ranks for other libraries, as torchrun sets them."""
        return rank_variables(**self._world(rank), num_local=self._num_processes)

    def _where(self, rank: int) -> str:
        place = self._places[rank]
        return f"(node {rank // self._num_processes}, {place.host}, pid {place.pid})"

    def _watch(self, running: dict[int, Any]) -> WorkerError | None:
        """Wait until all have ended, or one has failed and it is known which was first. `running`:
        those left.
        """
        ends_s: float | None = None
        while running:
            self._collect(running, _LOOK_S)
            self._hand_on(running)
            failed = self._failed()
            if not failed:
                continue
            if any(map(self._is_cause, failed)):
                break
            # A lost connection is the effect of another rank's end, which may not have been noticed
            # yet.
            ends_s = ends_s or time.monotonic() + _ECHO_S
            if time.monotonic() > ends_s:
                break
        first = min(self._failed(), key=lambda rank: not self._is_cause(rank), default=None)
        return None if first is None else self._failure(first)

    def _collect(self, running: dict[int, Any], timeout_s: float) -> None:
        """Collect the endings that come within a time."""
        each_s = timeout_s / len(running)
        for rank, answer in list(running.items()):
            try:
                self._endings[rank] = answer.get(each_s)
            except TimeoutError:
                continue
            except Exception as error:  # Monarch's own: of supervision, or of a message
                self._endings[rank] = self._lost(rank, str(error))
            del running[rank]

    def _lost(self, rank: int, said: str) -> WorkerError:
        """The error of a rank whose process is gone, of which Monarch has said no more than
        text.
        """
        if killed := re.search(r"Killed\(sig=(\d+)", said):
            return worker_error(rank, -int(killed[1]), None, where=self._where(rank))
        if exited := re.search(r"exited with non-zero code (\d+)", said):
            return worker_error(rank, int(exited[1]), None, where=self._where(rank))
        return WorkerError(
            f"Rank {rank} {self._where(rank)} was lost. Monarch says: {said}", rank=rank
        )

    def _hand_on(self, running: Mapping[int, Any]) -> None:
        if self._heard is not None and self._handed_on is None:
            self._handed_on = self._heard
            for rank in running:
                self._actors[rank].post.broadcast(MonarchNews(signal=self._heard))

    def _failed(self) -> list[int]:
        return [rank for rank in sorted(self._endings) if self._is_failure(self._endings[rank])]

    def _is_failure(self, ending: MonarchEnding | WorkerError) -> bool:
        if isinstance(ending, WorkerError):
            return True
        # A signal that was handed on ends a rank by its code.
        return ending.has_left or ending.exit_code not in (
            (0,) if self._heard is None else (0, 128 + self._heard)
        )

    def _is_cause(self, rank: int) -> bool:
        """True if it has failed by itself, not because another rank was gone."""
        ending = self._endings[rank]
        return isinstance(ending, WorkerError) or not (
            ending.report is not None and ending.report.is_echo
        )

    def _failure(self, rank: int) -> WorkerError:
        ending = self._endings[rank]
        if isinstance(ending, WorkerError):
            return ending
        if ending.has_left:
            return WorkerError(
                f"Rank {rank} {self._where(rank)} exited with code 0 in the middle of its work, "
                "and the other ranks still needed it. All ranks must make the same calls: look for "
                "a sys.exit that only some of them come to.",
                rank=rank,
                exit_code=0,
            )
        return worker_error(rank, ending.exit_code, ending.report, where=self._where(rank))

    def _stop(self, running: dict[int, Any], message: str, first: int) -> None:
        """Raise an exception in all ranks that are left, and wait a while for their `finally`
        blocks.
        """
        for rank in running:
            self._actors[rank].post.broadcast(MonarchNews(message=message, rank=first))
        self._await(running, _HEAR_S)
        # A rank that waits for this one in native code gets an error when its connection is closed.
        if isinstance(self._endings[first], MonarchEnding):
            self._actors[first].die.broadcast()
        self._await(running, GRACE_S)

    def _await(self, running: dict[int, Any], timeout_s: float) -> None:
        ends_s = time.monotonic() + timeout_s
        while running and (left_s := ends_s - time.monotonic()) > 0:
            self._collect(running, left_s)


@contextlib.contextmanager
def faults_of_ranks_are_answers() -> Iterator[None]:
    """A context in which a lost rank is an error of its call alone; Monarch would end the whole
    program besides.

    Faults of other meshes go where they went before.
    """
    monarch = library.load()
    previous = monarch.unhandled_fault_hook

    def hook(failure: Any) -> None:
        if not failure.mesh_name.startswith((_NAME, "logger", "setup")):
            previous(failure)

    monarch.unhandled_fault_hook = hook
    try:
        yield
    finally:
        monarch.unhandled_fault_hook = previous


def variables_of_core() -> dict[str, str]:
    """The variables of this process that steer core, which hosts that were started before it don't
    have.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith("CORE_") and name not in _OF_A_RANK
    }


_OF_A_RANK = (
    "CORE_CHANNEL",
    "CORE_WORLD_SIZE",
    "CORE_GLOBAL_RANK",
    "CORE_RANK_VARIABLES",
)
