"""Runs a function on real ranks: processes forked from this one, which has imported everything
already.
"""

from __future__ import annotations

import atexit
import copy
import gc
import os
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo  # every optimizer imports it when it is made: here once, and not in each rank

from core import ClusterEnvironment, ConfigurationError, CoreError, Fabric, Found
from core.cluster import reserve_port
from core.launch import MultiprocessingLauncher
from core_testing import surroundings
from core_testing.limit import end_after
from core_testing.pool import RankPool
from core_testing.serving import Call
from core_testing.waiting import slowness

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from core import Strategy, Trainer

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "enable_progress_bar": False,
    "num_sanity_val_steps": 0,
}
_THREADS_END_S = 1.0
"""Seconds for threads of what was collected to end."""
_pools: dict[Hashable, RankPool] = {}


class TestRanks(ClusterEnvironment):
    """The processes of a test. To the code in them they exist already, as if a scheduler had
    started them.
    """

    __test__ = False  # not a class of tests, whatever its name looks like to pytest

    def __init__(self) -> None:
        self._port = reserve_port(self)
        self._world = (1, 0, 0, 0)

    @classmethod
    def detect(cls) -> Found:
        """Never asked: the kit passes an instance."""
        return Found(1, priority=-1)

    @property
    def main_address(self) -> str:
        """This machine."""
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        """One that stays free for the store of these ranks."""
        return self._port

    def world_size(self) -> int:
        """Number of processes."""
        return self._world[0]

    def global_rank(self) -> int:
        """Number of this process."""
        return self._world[1]

    def local_rank(self) -> int:
        """Number of this process on its node, the only one."""
        return self._world[2]

    def node_rank(self) -> int:
        """Zero."""
        return self._world[3]

    def set_world(
        self, *, world_size: int, global_rank: int, local_rank: int, node_rank: int
    ) -> None:
        """Set size and ranks. Called in each process as it begins."""
        self._world = (world_size, global_rank, local_rank, node_rank)


@dataclass(frozen=True)
class Backend:
    """The strategy, devices and options with which the ranks of a test train.

    Attributes:
        strategy: makes one; called on each rank. An alias does as well.
        accelerator: name of the kind of device.
        num_processes: number of ranks, with a device each.
        data_parallel_size: number of shares into which the data is split; differs where ranks share
            a model.
        options: of Trainer and Fabric, such as the precision.
        timeout_s: seconds of a fast and idle machine (`core_testing.waiting`) after which ranks
            that hang are ended.
        kept_for: for whose next call the ranks stay, until `end_kept_ranks`; None lets them end
            with each call.
        in_process: make the ranks threads of this process; see `in_one_process`.
    """

    strategy: Callable[[], Strategy | str]
    accelerator: str = "cpu"
    num_processes: int = 1
    data_parallel_size: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 240
    kept_for: Hashable = None
    in_process: bool = False

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call `function(rank, *args)` on every rank, where `rank` is a `Rank`.

        Returns:
            What the function returned, one item a rank; tensors on the CPU.

        Raises:
            WorkerError: a rank failed; its traceback is the cause.
        """
        if self.in_process:
            return self._in_one_process(function, args)
        if self.kept_for is not None:
            # Kept ranks don't see what has changed in this process since they were forked: settings
            # travel with the call.
            call = Call(function, args, self._limit_s(), surroundings.copy_shared()).pickled()
            if call is not None:  # what doesn't pickle reaches new ranks by the fork
                return self._kept_ranks().call(call)
        launcher, environment = self._launcher()
        with tempfile.TemporaryDirectory(prefix="core-testing-") as folder:
            launcher.launch(self._work, environment, Path(folder), function, args)
            files = [Path(folder) / str(rank) for rank in range(self.num_processes)]
            # our own files
            return [torch.load(file, map_location="cpu", weights_only=False) for file in files]

    def _in_one_process(self, function: Callable[..., Any], args: Any) -> list[Any]:
        from core_testing.one_process import in_one_process

        if self.accelerator != "cpu":
            raise ConfigurationError(
                "Ranks in one process share a device's state, so in_process=True is for "
                f"accelerator='cpu' only, and not for {self.accelerator!r}."
            )

        def work(*args: Any) -> Any:
            environment = copy.copy(shared)
            number = int(os.environ["RANK"])
            environment.set_world(
                world_size=self.num_processes, global_rank=number, local_rank=number, node_rank=0
            )
            return function(Rank(self, environment), *args)

        shared = TestRanks()
        return in_one_process(work, *args, ranks=self.num_processes, timeout_s=self._limit_s())

    def _kept_ranks(self) -> RankPool:
        pool = _pools.get(self.kept_for)
        if pool is None or pool.is_over:
            launcher, environment = self._launcher()
            launcher.check()
            pool = _pools[self.kept_for] = RankPool(
                launcher, environment, lambda: Rank(self, environment)
            )
        return pool

    def _launcher(self) -> tuple[MultiprocessingLauncher, TestRanks]:
        # the first one finds out which packages are core's: here once, and not in each rank
        CoreError()
        _end_forgotten_loaders()
        launcher, environment = MultiprocessingLauncher("fork"), TestRanks()
        launcher.connect(
            cluster_environment=environment, num_processes=self.num_processes, num_nodes=1
        )
        return launcher, environment

    def _limit_s(self) -> float:
        return self.timeout_s * slowness()

    def _work(
        self, environment: TestRanks, folder: Path, function: Callable[..., Any], args: Any
    ) -> None:
        end_after(self._limit_s())
        rank = Rank(self, environment)
        result = function(rank, *args)
        torch.save(result, folder / str(rank.number))


def _end_forgotten_loaders() -> None:
    """Collect loaders of earlier tests, whose workers have threads here until then: a fork refuses
    to copy threads.
    """
    if threading.active_count() > 1:
        gc.collect()
        ends_s = time.monotonic() + _THREADS_END_S
        while threading.active_count() > 1 and time.monotonic() < ends_s:
            time.sleep(0.01)


class Rank:
    """One process of a test.

    Attributes:
        backend: what it trains with.
        environment: has its number.
        number: from 0.
    """

    def __init__(self, backend: Backend, environment: TestRanks) -> None:
        self.backend, self.environment = backend, environment
        self.number = environment.global_rank()

    def fabric(self, strategy: Strategy | str | None = None, **options: Any) -> Fabric:
        """A Fabric on all ranks of the test. What it holds is set up by its first use; `launch`
        isn't needed.
        """
        return Fabric(**self._options(strategy, options))

    def trainer(self, strategy: Strategy | str | None = None, **options: Any) -> Trainer:
        """A Trainer on all ranks of the test, without output."""
        from core import Trainer

        return Trainer(**(QUIET | self._options(strategy, options)))

    def _options(self, strategy: Strategy | str | None, options: dict[str, Any]) -> dict[str, Any]:
        backend = self.backend
        return {
            "strategy": backend.strategy() if strategy is None else strategy,
            "accelerator": backend.accelerator,
            "devices": backend.num_processes,
            "plugins": [self.environment],
            **backend.options,
            **options,
        }


def one_device(accelerator: str, is_kept: bool = True) -> Backend:
    """The backend with which strategies are compared: a single device."""
    return Backend(
        lambda: "single_device",
        accelerator,
        kept_for=(one_device, accelerator) if is_kept else None,
    )


def end_kept_ranks() -> None:
    """End the ranks that wait for a next call.

    Raises:
        WorkerError: one of them has ended badly.
    """
    while _pools:
        _pools.popitem()[1].close()


def _forget_kept_ranks() -> None:
    """Forget the ranks in a fork of this process, to which they don't belong."""
    for pool in _pools.values():
        pool.forget()
    _pools.clear()


atexit.register(end_kept_ranks)
os.register_at_fork(after_in_child=_forget_kept_ranks)


def own_temporary_folder() -> Path:
    """Make this process's temporary files in this folder from now on, where they can be counted."""
    folder = Path(tempfile.mkdtemp(prefix="core-testing-"))
    tempfile.tempdir = str(folder)
    os.environ["TMPDIR"] = str(folder)
    return folder
