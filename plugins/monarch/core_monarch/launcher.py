"""The launcher that puts the ranks of any strategy into Monarch's actors."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from core import ConfigurationError, Launcher, LaunchError
from core.launch import LaunchedCall, SignalForwarder, read_result
from core_monarch import library
from core_monarch.environment import MonarchEnvironment
from core_monarch.ranks import MonarchRanks, faults_of_ranks_are_answers, variables_of_core

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core import ClusterEnvironment


class MonarchLauncher(Launcher):
    """Runs the function in Monarch's actors, one a rank, each in a process of its own, and none of
    it in this process.

    The script is started once. Each `launch` makes the processes on the hosts, and ends with them.
    Everything that the ranks need is pickled by cloudpickle, so that it also works from a notebook,
    and what the script itself defines needs no import.
    """

    calls_in_place = False
    pickles = True

    def __init__(self, hosts: Any = None, *, env: Mapping[str, str] | None = None) -> None:
        """Create the launcher.

        Args:
            hosts: Monarch's `HostMesh`, such as `attach_to_workers(...)` or a job's
                `state().trainers`, a host for each node of the run. None: this machine.
            env: variables of the ranks' processes, beside those of their host.
        """
        self.hosts = hosts
        self.env = dict(env or {})

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"hosts": None}  # the main process's

    def configure_cluster_environment(self) -> ClusterEnvironment:
        """The environment of ranks that are on hosts where the script isn't started."""
        return MonarchEnvironment()

    def check(self) -> None:
        """Refuse where Monarch isn't installed, and other hosts than there are nodes.

        Raises:
            LaunchError: there are more hosts than nodes, or fewer.
            PluginLoadError: Monarch can't be imported.
        """
        library.load()
        number = 1 if self.hosts is None else self.hosts.size()
        if number != self.num_nodes:
            whose = (
                "this launcher has this machine alone"
                if self.hosts is None
                else f"there are {number} in `hosts`"
            )
            raise LaunchError(
                f"num_nodes={self.num_nodes} needs as many hosts of Monarch, and {whose}. Pass "
                "MonarchLauncher(hosts=...) with Monarch's mesh of them, or num_nodes to fit it."
            )

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the function in an actor for every rank, on all hosts. Returns the result of rank 0.

        Raises:
            LaunchError: the processes don't begin; or an argument can't be pickled, and is named.
            WorkerError: a rank failed; its traceback is the cause. The others have ended too.
        """
        self.check()
        if self.cluster_environment is None:
            raise ConfigurationError(
                "The launcher needs a cluster environment to tell ranks; call connect(...) first."
            )
        file = io.BytesIO()
        LaunchedCall.of(self.cluster_environment, function, args, kwargs).write(
            file,
            who="The launcher 'monarch'",
            cure="Make it in the module or function that runs on the ranks.",
            pickle_module=library.load("cloudpickle"),
        )
        hosts = library.load().this_host() if self.hosts is None else self.hosts
        with faults_of_ranks_are_answers(), SignalForwarder() as signals:
            ranks = MonarchRanks(self.num_processes)
            try:
                ranks.start(hosts, variables_of_core() | self.env)
                signals.to(ranks)
                result = ranks.run(file.getvalue())
            finally:
                ranks.end()
            signals.raise_for()
        return read_result(io.BytesIO(result))
