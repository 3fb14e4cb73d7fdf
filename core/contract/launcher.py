"""Makes the processes, when the cluster has not."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract.accelerator import Accelerator
    from core.contract.cluster_environment import ClusterEnvironment


class Launcher(abc.ABC):
    """Calls a function in every process of this node, or of all nodes. Meant to be subclassed.

    The call sequence, all in the main process:

    1. `count_devices(...)`, if the user passed this launcher; then
       `configure_cluster_environment()` and `connect(...)`. Each once, by `resolve`.
    2. `check()`: can processes be made here, in this way? Called before anything is started.
    3. `launch(function, ...)`: in every worker the cluster environment knows its rank, then
       `function` runs. It may be called again: a later call with the same world re-uses or re-makes
       the workers.
    4. `close()`: no worker is left. Also called when the interpreter exits.
    """

    calls_in_place: ClassVar[bool] = True
    """True if `function` of rank 0 runs in the calling process. If not (spawn, fork), its result
    crosses a process boundary, and the caller puts what changed back into its own objects."""

    pickles: bool = False
    """True if `function` and its arguments must be picklable."""

    cluster_environment: ClusterEnvironment | None = None
    num_processes: int = 1
    num_nodes: int = 1
    interactive_alias: str | None = None

    def connect(
        self,
        *,
        cluster_environment: ClusterEnvironment | None,
        num_processes: int,
        num_nodes: int,
        interactive_alias: str | None = None,
    ) -> None:
        """Set the number of processes that this node needs, and the environment that gives them
        their ranks.

        Args:
            cluster_environment: its `set_world` is called by the launcher, in every process that it
                makes.
            num_processes: on this node.
            num_nodes: in the whole run.
            interactive_alias: the strategy to recommend where this launcher can't work, such as in
                a notebook.
        """
        self.cluster_environment = cluster_environment
        self.num_processes = num_processes
        self.num_nodes = num_nodes
        self.interactive_alias = interactive_alias

    def configure_cluster_environment(self) -> ClusterEnvironment | None:
        """Main process; called by `resolve`, once, before `connect`. The environment that has this
        launcher's ranks.

        It is for a launcher that makes the processes of all nodes by itself, so that the user
        starts the script once. Not asked where the user passed an environment, or where the
        scheduler has made the processes. None: the one that was found, for a script that is started
        on every node.
        """
        return None

    def count_devices(
        self, accelerator: Accelerator, devices: int | list[int] | Literal["auto"], num_nodes: int
    ) -> int | None:
        """Main process; called by `resolve`, once, before the devices are chosen. Number of devices
        on each node.

        It is for a launcher whose ranks run on other machines, whose devices the accelerator can't
        see from here. Not asked where a scheduler has made the processes. None: the devices are
        this machine's, as the accelerator counts.

        Args:
            accelerator: the kind of device that was chosen, which may have none on this machine.
            devices: as the user wrote it: a number, -1 for all, indices, or `"auto"`.
            num_nodes: in the whole run.

        Raises:
            DeviceError: the nodes don't have them.
        """
        return None

    def check(self) -> None:
        """Raise before any work if processes can't be made this way here.

        Raises:
            LaunchError: why not, and what to use instead.
        """

    @abc.abstractmethod
    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `function(*args, **kwargs)` on every rank and return rank 0's result.

        Raises:
            WorkerError: a worker ended first; it carries rank, exit code and the worker's
                traceback.
        """

    def close(self) -> None:
        """Idempotent. End the workers that are still there."""
