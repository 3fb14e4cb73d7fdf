"""The ClusterEnvironment contract: reads the ranks and addresses that the starter of the processes
has set.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import signal

    from core.contract.accelerator import Detection


class ClusterEnvironment(abc.ABC):
    """The position of this process among the others. Meant to be subclassed.

    The call sequence:

    1. `detect()`, main process: is this environment the one we run in? Environment variables are
       all it reads.
    2. `validate(num_devices, num_nodes)`, main process: do the user's arguments fit what the
       scheduler gave?
    3. `creates_processes`: True if the processes exist already, so that the launcher only calls the
       function.
    4. The numbers, all ranks. A launcher that makes processes calls `set_world` in each of them
       first.
    5. `teardown()`, all ranks, idempotent.
    """

    creates_processes: ClassVar[bool] = True
    """True if the environment starts every rank. False: the strategy's launcher has to."""

    requeue_signal: signal.Signals | None = None
    """The signal by which the scheduler announces that it will take the machine away, so that the
    job should save and `requeue`. None: it announces nothing."""

    @classmethod
    @abc.abstractmethod
    def detect(cls) -> Detection:
        """Detect if this process runs in this environment: `Found(world size, priority)`."""

    @property
    @abc.abstractmethod
    def main_address(self) -> str:
        """Host name or address of global rank 0."""

    @property
    @abc.abstractmethod
    def main_port(self) -> int:
        """TCP port on `main_address` where the ranks meet."""

    @abc.abstractmethod
    def world_size(self) -> int:
        """Number of processes."""

    @abc.abstractmethod
    def global_rank(self) -> int:
        """Number of this process among all, from 0."""

    @abc.abstractmethod
    def local_rank(self) -> int:
        """Number of this process on its node, from 0."""

    @abc.abstractmethod
    def node_rank(self) -> int:
        """Number of this node, from 0."""

    def num_nodes(self) -> int | None:
        """Number of nodes, for `num_nodes="auto"`; None if this environment doesn't have it."""
        return None

    @property
    def shows_own_device(self) -> bool:
        """True if each process sees no device but its own, which then has index 0 in all of
        them.
        """
        return False

    @property
    def restart_count(self) -> int:
        """Number of restarts, as this node counts them."""
        return 0

    @property
    def store_is_hosted(self) -> bool:
        """True if a TCP store listens at the main address already (an elastic agent's). Else rank 0
        makes one.
        """
        return False

    def set_world(
        self, *, world_size: int, global_rank: int, local_rank: int, node_rank: int
    ) -> None:
        """Set the ranks, in a process that a launcher made. Ignored if the scheduler has decided
        them.
        """

    def validate(self, num_devices: int, num_nodes: int) -> None:
        """Compare the user's arguments with what the scheduler gave.

        Args:
            num_devices: processes that the strategy wants on each node.
            num_nodes: nodes.

        Raises:
            ConfigurationError: they differ; the message shows both and says which to change.
        """

    def job_id(self) -> str | None:
        """The scheduler's name for this job, if it has one."""
        return None

    def requeue(self) -> bool:
        """Rank 0. Ask the scheduler to run this job again after it ends. False: this environment
        can't.
        """
        return False

    def teardown(self) -> None:
        """All ranks; idempotent. Forget what was made here: a chosen port, variables."""
