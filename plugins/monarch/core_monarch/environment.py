"""Ranks in Monarch's actors, as the launcher of this package has made them."""

from __future__ import annotations

import os

from core import Absent, ClusterEnvironment, ConfigurationError


class MonarchEnvironment(ClusterEnvironment):
    """Processes that `MonarchLauncher` makes, on all hosts. The launcher brings it; nothing has to
    name it.

    Variables, set by the launcher in every process:
        MASTER_ADDR, MASTER_PORT: where rank 0 meets the others.
    """

    creates_processes = False

    def __init__(self) -> None:
        self._world: tuple[int, int, int, int] | None = None

    @classmethod
    def detect(cls) -> Absent:
        """Never found by itself: the launcher brings it."""
        return Absent("the launcher 'monarch' brings it")

    @property
    def main_address(self) -> str:
        """The address of rank 0's host; in the main process, before there is a rank 0, this
        machine.
        """
        return os.environ.get("MASTER_ADDR", "127.0.0.1") if self._world else "127.0.0.1"

    @property
    def main_port(self) -> int:
        """A port that was free on rank 0's host when the launcher asked.

        Raises:
            ConfigurationError: this is the main process, and there is no rank 0 yet.
        """
        if not self._world:
            raise ConfigurationError(
                "The port at which ranks meet is known in Monarch's processes only."
            )
        return int(os.environ["MASTER_PORT"])

    def world_size(self) -> int:
        """Number of processes; 1 before the launcher has spoken."""
        return self._world[0] if self._world else 1

    def global_rank(self) -> int:
        """Number of this process among all; 0 before the launcher has spoken."""
        return self._world[1] if self._world else 0

    def local_rank(self) -> int:
        """Number of this process on its host; 0 before the launcher has spoken."""
        return self._world[2] if self._world else 0

    def node_rank(self) -> int:
        """Number of the host; 0 before the launcher has spoken."""
        return self._world[3] if self._world else 0

    def set_world(
        self, *, world_size: int, global_rank: int, local_rank: int, node_rank: int
    ) -> None:
        """Set the ranks, as the launcher has numbered them."""
        self._world = (world_size, global_rank, local_rank, node_rank)
