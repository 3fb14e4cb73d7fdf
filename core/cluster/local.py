"""This machine, without a scheduler that starts the processes."""

from __future__ import annotations

import os
from typing import ClassVar

from core.cluster.ports import reserve_port
from core.cluster.variables import read_or_0, read_port
from core.contract import Absent, ClusterEnvironment, ConfigurationError, Found

_BY_HAND = (
    "Without a scheduler the script is started by hand on every node, with MASTER_ADDR and "
    "MASTER_PORT (the same everywhere, for the node of rank 0) and NODE_RANK (0, 1, ...); or use "
    "torchrun."
)


class LocalEnvironment(ClusterEnvironment):
    """The processes are made by the strategy's launcher. Always here, and chosen only when no
    scheduler is.

    Variables, all optional on one node:
        MASTER_ADDR: where rank 0 is; 127.0.0.1 if it isn't set.
        MASTER_PORT: a free port; chosen in the main process if it isn't set.
        NODE_RANK: which node this is, from 0. With several nodes the script is started by hand on
        each, and all three
            are needed.
        CORE_GLOBAL_RANK: which rank a worker will be, as its launcher has announced.

    Ranks come from the launcher through `set_world`.
    """

    creates_processes = False
    _meeting_port: ClassVar[int | None] = None
    """Known to processes that were made once for the whole script; later runs meet them there."""

    def __init__(self) -> None:
        self._main_port: int | None = None
        self._world: tuple[int, int, int, int] | None = None

    @classmethod
    def detect(cls) -> Found | Absent:
        """Always found, with the lowest priority."""
        return Found(1, priority=0)

    @property
    def main_address(self) -> str:
        """`MASTER_ADDR`, or this machine."""
        return os.environ.get("MASTER_ADDR", "").strip() or "127.0.0.1"

    @property
    def main_port(self) -> int:
        """`MASTER_PORT`, or a free port. It is kept, and travels with the pickled environment into
        workers.
        """
        if self._main_port is None:
            self._main_port = read_port(_BY_HAND) or self._meeting_port or reserve_port(self)
        return self._main_port

    def world_size(self) -> int:
        """Number of processes; 1 before the launcher has spoken."""
        if self._world:
            return self._world[0]
        return 1

    def global_rank(self) -> int:
        """Number of this process among all; before the launcher has spoken, `CORE_GLOBAL_RANK`, or
        0.
        """
        if self._world:
            return self._world[1]
        return read_or_0("CORE_GLOBAL_RANK", hint=_BY_HAND)

    def local_rank(self) -> int:
        """Number of this process on its node."""
        if self._world:
            return self._world[2]
        return 0

    def node_rank(self) -> int:
        """The launcher's number; before there is one, `NODE_RANK`, or 0."""
        if self._world:
            return self._world[3]
        return read_or_0("NODE_RANK", hint=_BY_HAND)

    def set_world(
        self, *, world_size: int, global_rank: int, local_rank: int, node_rank: int
    ) -> None:
        """Set the ranks, as the launcher has numbered them."""
        self._world = (world_size, global_rank, local_rank, node_rank)
        if world_size > 1:
            LocalEnvironment._meeting_port = self.main_port

    def validate(self, num_devices: int, num_nodes: int) -> None:
        """Several nodes need the variables that distinguish them.

        Raises:
            ConfigurationError: one is missing, or `NODE_RANK` is beyond the last node.
        """
        if num_nodes == 1:
            return
        needed = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
        missing = [name for name in needed if not os.environ.get(name)]
        if missing:
            scheduler = ""
            if "SLURM_JOB_ID" in os.environ:
                scheduler = " Inside a SLURM job, start the script with srun."
            raise ConfigurationError(
                f"num_nodes={num_nodes}, and no scheduler was found that starts the processes; not "
                f"set: {', '.join(missing)}. {_BY_HAND}{scheduler}"
            )
        node_rank = self.node_rank()
        if node_rank >= num_nodes:
            raise ConfigurationError(
                f"NODE_RANK={node_rank}, but num_nodes={num_nodes}: expected 0 to {num_nodes - 1}. "
                "Set it to another number on each node."
            )
