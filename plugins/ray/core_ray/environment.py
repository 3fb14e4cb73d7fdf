"""Ranks in Ray's workers: those that the launcher of this package has made, and those of Ray
Train.
"""

from __future__ import annotations

import os

from core import Absent, ClusterEnvironment, ConfigurationError, Found
from core.cluster import TorchElasticEnvironment

_RESTARTS = "CORE_RAY_RESTART_COUNT"
_MARK = "ACCELERATE_TORCH_DEVICE"
_TRAIN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", _MARK)


class RayEnvironment(ClusterEnvironment):
    """Processes that `RayLauncher` makes, on all nodes. The launcher brings it; nothing has to name
    it.

    Variables, set by the launcher in every worker:
        MASTER_ADDR, MASTER_PORT: where rank 0 meets the others.
        CORE_RAY_RESTART_COUNT: how often the run was started again after a lost worker.
    """

    creates_processes = False

    def __init__(self) -> None:
        self._world: tuple[int, int, int, int] | None = None

    @classmethod
    def detect(cls) -> Absent:
        """Never found by itself: the launcher brings it."""
        return Absent("the launcher 'ray' brings it")

    @property
    def main_address(self) -> str:
        """The address of rank 0's node; in the main process, before there is a rank 0, this
        machine.
        """
        return os.environ.get("MASTER_ADDR", "127.0.0.1") if self._world else "127.0.0.1"

    @property
    def main_port(self) -> int:
        """A port that was free on rank 0's node when the launcher asked.

        Raises:
            ConfigurationError: this is the main process, and there is no rank 0 yet.
        """
        if not self._world:
            raise ConfigurationError(
                "The port at which ranks meet is known in Ray's workers only, once they run."
            )
        return int(os.environ["MASTER_PORT"])

    def world_size(self) -> int:
        """Number of processes; 1 before the launcher has spoken."""
        return self._world[0] if self._world else 1

    def global_rank(self) -> int:
        """Number of this process among all; 0 before the launcher has spoken."""
        return self._world[1] if self._world else 0

    def local_rank(self) -> int:
        """Number of this process on its node; 0 before the launcher has spoken."""
        return self._world[2] if self._world else 0

    def node_rank(self) -> int:
        """Number of the node; 0 before the launcher has spoken."""
        return self._world[3] if self._world else 0

    @property
    def restart_count(self) -> int:
        """Number of times that the run was started again, after a worker was lost."""
        return int(os.environ.get(_RESTARTS, "0")) if self._world else 0

    def set_world(
        self, *, world_size: int, global_rank: int, local_rank: int, node_rank: int
    ) -> None:
        """Set the ranks, as the launcher has numbered them."""
        self._world = (world_size, global_rank, local_rank, node_rank)


class RayTrainEnvironment(TorchElasticEnvironment):
    """A worker of Ray Train's `TorchTrainer`: the processes are there, and their process group too.

    Variables, as Ray Train sets them before it calls the training function:
        RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK: ranks, and numbers of processes.
        MASTER_ADDR, MASTER_PORT: where the ranks have met.
        ACCELERATE_TORCH_DEVICE: set, together with `NODE_RANK`, by Ray Train.
    """

    @classmethod
    def detect(cls) -> Found | Absent:
        """Found if all of Ray Train's variables are set. It comes before torchrun, whose variables
        these are too.
        """
        if missing := [name for name in _TRAIN_VARIABLES if not os.environ.get(name, "").strip()]:
            return Absent(f"no worker of Ray Train: {missing[0]} is not set")
        return Found(cls().world_size(), priority=95)

    def node_rank(self) -> int:
        """`NODE_RANK`.

        Raises:
            ConfigurationError: it isn't a number.
        """
        text = os.environ.get("NODE_RANK", "").strip()
        if not text.isdecimal():
            raise ConfigurationError(
                f"NODE_RANK={text!r}: expected the number of this node, as Ray Train sets it."
            )
        return int(text)

    def validate(self, num_devices: int, num_nodes: int) -> None:
        """The number of workers must be the number of devices.

        Raises:
            ConfigurationError: it isn't.
        """
        workers, wanted = self.world_size(), num_devices * num_nodes
        if workers != wanted:
            raise ConfigurationError(
                f"Ray Train started {workers} workers, but devices={num_devices} and "
                f"num_nodes={num_nodes} ask for {wanted}. Pass devices and num_nodes whose product "
                f"is {workers}, or ScalingConfig(num_workers={wanted})."
            )
