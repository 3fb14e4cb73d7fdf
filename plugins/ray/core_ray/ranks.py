"""The ranks of one attempt, seen from the main process: made, watched, and ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from core import WorkerError
from core.launch import GRACE_S, rank_variables, worker_error
from core_ray import library
from core_ray.errors import LostWorkerError
from core_ray.worker import Ending, Mailbox, News, RankActor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core_ray.worker import Place

_LOOK_S = 0.2
"""Seconds after which a signal that came to the main process is handed on."""
_GRACE_S = 2.0
"""Seconds to look for the cause when a rank reports no more than a lost connection."""
_HEAR_S = 0.5
"""Seconds after which a rank that was asked to end, and goes on, is taken to wait in native
code.
"""


class RankActors:
    """The actors of one attempt, in the order of their ranks."""

    def __init__(self, num_processes: int) -> None:
        """Create the numbers from how many there are on each node of the run."""
        self._num_processes = num_processes
        self._actors: list[Any] = []
        self._places: list[Place] = []
        self._addresses: dict[str, str] = {}
        self._mailbox: Any = None
        self._endings: dict[int, Ending | LostWorkerError] = {}
        self._heard: int | None = None
        self._handed_on: int | None = None

    def forward(self, number: int) -> None:
        """Hand a signal on to all ranks, at the next look: this is called in a signal's handler."""
        self._heard = number

    @property
    def is_interrupted(self) -> bool:
        """True if a signal came."""
        return self._heard is not None

    def start(self, group: Any, num_nodes: int, options: Mapping[str, Any]) -> None:
        """Make the actors, each in its node's bundle.

        Raises:
            LostWorkerError: one is gone already.
            WorkerError: one can't begin.
        """
        ray = library.load()
        strategies = library.load("ray.util.scheduling_strategies")
        here = strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=True
        )
        self._mailbox = ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()
        actor = ray.remote(RankActor)
        for rank in range(num_nodes * self._num_processes):
            bundle = strategies.PlacementGroupSchedulingStrategy(group, rank // self._num_processes)
            self._actors.append(
                actor.options(scheduling_strategy=bundle, **options).remote(rank, self._mailbox)
            )
        for rank, answer in enumerate([actor.begin.remote() for actor in self._actors]):
            try:
                self._places.append(ray.get(answer))
            except ray.exceptions.RayActorError as error:
                raise LostWorkerError(
                    f"Rank {rank} can't begin in its Ray worker: {error}", rank=rank
                ) from error
            except ray.exceptions.RayError as error:
                raise WorkerError(
                    f"Rank {rank} can't begin in its Ray worker: {error}", rank=rank
                ) from error
        self._addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}

    def run(self, call: Any, variables: Mapping[str, str]) -> bytes:
        """Run the call on every rank. Returns rank 0's pickled result; empty if a signal ended the
        run.

        Args:
            call: the pickled call, in Ray's store.
            variables: set in every worker.

        Raises:
            WorkerError: the rank that failed first; all others have ended.
        """
        first = self._places[0]
        meeting = {"MASTER_ADDR": self._addresses[first.node_id], "MASTER_PORT": str(first.port)}
        running = {
            actor.run.remote(
                call, self._world(rank), {**variables, **meeting, **self._variables(rank)}
            ): rank
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
        assert isinstance(ending, Ending)
        return ending.result or b""

    def end(self) -> None:
        """End all processes: those whose work is done in good order, the others by force."""
        ray = library.load()
        leaving = [
            actor.__ray_terminate__.remote()
            for rank, actor in enumerate(self._actors)
            if rank in self._endings
        ]
        if leaving:
            ray.wait(leaving, num_returns=len(leaving), timeout=GRACE_S)
        for actor in (*self._actors, *filter(None, [self._mailbox])):
            ray.kill(actor)

    def _world(self, rank: int) -> dict[str, int]:
        return {
            "world_size": len(self._actors),
            "global_rank": rank,
            "local_rank": rank % self._num_processes,
            "node_rank": rank // self._num_processes,
        }

    def _variables(self, rank: int) -> dict[str, str]:
        """The ranks for other libraries, as torchrun sets them, and the GPUs of all ranks of this
        node in their order.

        A rank takes the GPU of its local rank among them, as without Ray.
        """
        first = rank - rank % self._num_processes
        places = self._places[first : first + self._num_processes]
        devices = [device for place in places for device in place.devices]
        ranks = rank_variables(**self._world(rank), num_local=self._num_processes)
        return ranks | ({"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {})

    def _where(self, rank: int) -> str:
        place = self._places[rank]
        return (
            f"(node {rank // self._num_processes}, {self._addresses[place.node_id]}, pid "
            f"{place.pid})"
        )

    def _watch(self, running: dict[Any, int]) -> WorkerError | None:
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
            ends_s = ends_s or time.monotonic() + _GRACE_S
            if time.monotonic() > ends_s:
                break
        first = min(self._failed(), key=lambda rank: not self._is_cause(rank), default=None)
        return None if first is None else self._failure(first)

    def _collect(self, running: dict[Any, int], timeout_s: float) -> None:
        """Collect the endings that come within a time."""
        ray = library.load()
        ended, _ = ray.wait(list(running), num_returns=1, timeout=timeout_s)
        for answer in ended:
            rank = running.pop(answer)
            try:
                self._endings[rank] = ray.get(answer)
            except ray.exceptions.RayTaskError as error:  # the call can't even be read there
                raise WorkerError(
                    f"Rank {rank} {self._where(rank)} can't begin: {error}", rank=rank
                ) from error
            except ray.exceptions.RayError as error:
                self._endings[rank] = LostWorkerError(
                    f"Rank {rank} {self._where(rank)} was lost: its process or its node is gone. "
                    f"Ray says: {error}",
                    rank=rank,
                )

    def _hand_on(self, running: Mapping[Any, int]) -> None:
        if self._heard is not None and self._handed_on is None:
            self._handed_on = self._heard
            for rank in running.values():
                self._mailbox.post.remote(rank, News(signal=self._heard))

    def _failed(self) -> list[int]:
        return [rank for rank in sorted(self._endings) if self._is_failure(self._endings[rank])]

    def _is_failure(self, ending: Ending | LostWorkerError) -> bool:
        if isinstance(ending, LostWorkerError):
            return True
        # A signal that was handed on ends a rank by its code.
        return ending.has_left or ending.exit_code not in (
            (0,) if self._heard is None else (0, 128 + self._heard)
        )

    def _is_cause(self, rank: int) -> bool:
        """True if it has failed by itself, not because another rank was gone."""
        ending = self._endings[rank]
        return isinstance(ending, LostWorkerError) or not (
            ending.report is not None and ending.report.is_echo
        )

    def _failure(self, rank: int) -> WorkerError:
        ending = self._endings[rank]
        if isinstance(ending, LostWorkerError):
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

    def _stop(self, running: dict[Any, int], message: str, first: int) -> None:
        """Raise an exception in all ranks that are left, and wait a while for their `finally`
        blocks.
        """
        for rank in running.values():
            self._mailbox.post.remote(rank, News(message=message, rank=first))
        self._await(running, _HEAR_S)
        # A rank that waits for this one in native code gets an error when its connection is closed.
        library.load().kill(self._actors[first])
        self._await(running, GRACE_S)

    def _await(self, running: dict[Any, int], timeout_s: float) -> None:
        ends_s = time.monotonic() + timeout_s
        while running and (left_s := ends_s - time.monotonic()) > 0:
            self._collect(running, left_s)
