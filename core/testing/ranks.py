"""Runs a function on real ranks: processes forked from this one, which has imported everything already."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch._dynamo  # every optimizer imports it when it is made: here once, and not in each rank

from core import ClusterEnvironment, Fabric, Found, Trainer
from core.launch import MultiprocessingLauncher

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core import Strategy

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "enable_progress_bar": False,
    "num_sanity_val_steps": 0,
}
_LAST_WORDS_S = 5


class TestRanks(ClusterEnvironment):
    """The processes of a test. To the code in them they exist already, as if a scheduler had started them."""

    __test__ = False  # not a class of tests, whatever its name looks like to pytest

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
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
        """One that was free when the test began."""
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

    def set_world(self, *, world_size: int, global_rank: int, local_rank: int, node_rank: int) -> None:
        """Called in each process as it begins."""
        self._world = (world_size, global_rank, local_rank, node_rank)


@dataclass(frozen=True)
class Backend:
    """What the ranks of a test train with.

    Attributes:
        strategy: makes one; called on each rank. An alias does as well.
        accelerator: name of the kind of device.
        num_processes: how many ranks, with a device each.
        num_shares: into how many shares the data is split; differs where ranks share a model.
        options: of Trainer and Fabric, such as the precision.
        timeout_s: after which ranks that hang are ended, and the test fails.
    """

    strategy: Callable[[], Strategy | str]
    accelerator: str = "cpu"
    num_processes: int = 1
    num_shares: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 60

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call `function(rank, *args)` on every rank, where `rank` is a `Rank`.

        Returns:
            What the function returned, one item a rank; tensors on the CPU.

        Raises:
            WorkerError: a rank failed; its traceback is the cause.
        """
        launcher, environment = MultiprocessingLauncher("fork"), TestRanks()
        launcher.connect(cluster_environment=environment, num_processes=self.num_processes, num_nodes=1)
        with tempfile.TemporaryDirectory(prefix="core-testing-") as folder:
            launcher.launch(self._work, environment, Path(folder), function, args)
            files = [Path(folder) / str(rank) for rank in range(self.num_processes)]
            return [torch.load(file, map_location="cpu", weights_only=False) for file in files]  # our own files

    def _work(self, environment: TestRanks, folder: Path, function: Callable[..., Any], args: Any) -> None:
        _end_after(self.timeout_s)
        rank = Rank(self, environment)
        result = function(rank, *args)
        torch.save(result, folder / str(rank.number))


class Rank:
    """One process of a test.

    Attributes:
        backend: what it trains with.
        environment: tells it its number.
        number: from 0.
    """

    def __init__(self, backend: Backend, environment: TestRanks) -> None:
        self.backend, self.environment = backend, environment
        self.number = environment.global_rank()

    def fabric(self, strategy: Strategy | str | None = None, **options: Any) -> Fabric:
        """A Fabric on all ranks of the test. What it holds is set up by its first use; `launch` isn't needed."""
        return Fabric(**self._options(strategy, options))

    def trainer(self, strategy: Strategy | str | None = None, **options: Any) -> Trainer:
        """A Trainer on all ranks of the test, without output."""
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


def _end_after(timeout_s: float) -> None:
    """Raise in this process when its time is over, and end it if it doesn't hear that in native code."""

    def raise_timeout(signum: int, frame: Any) -> NoReturn:
        raise TimeoutError(f"The ranks of this test have not come to their end within {timeout_s:g} s.")

    signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    faulthandler.dump_traceback_later(timeout_s + _LAST_WORDS_S, exit=True, file=2)


def own_temporary_folder() -> Path:
    """From now on, temporary files of this process are made here, where they can be counted."""
    folder = Path(tempfile.mkdtemp(prefix="core-testing-"))
    tempfile.tempdir = str(folder)
    os.environ["TMPDIR"] = str(folder)
    return folder
