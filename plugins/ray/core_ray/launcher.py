"""The launcher that puts the ranks of any strategy on the workers of a Ray cluster."""

from __future__ import annotations

import io
import os
import warnings
from typing import TYPE_CHECKING, Any, Literal

from core import ConfigurationError, DeviceError, Launcher, LaunchError
from core.accelerators import CUDAAccelerator
from core.launch import LaunchedCall, SignalForwarder, read_result
from core_ray import cluster, library
from core_ray.environment import RayEnvironment
from core_ray.errors import LostWorkerError
from core_ray.ranks import RankActors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core import Accelerator, ClusterEnvironment

_OF_A_RANK = (
    "CORE_CHANNEL",
    "CORE_WORLD_SIZE",
    "CORE_GLOBAL_RANK",
    "CORE_RANK_VARIABLES",
)
_PLACEMENTS = ("STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK")


class RayLauncher(Launcher):
    """Runs the function in actors of a Ray cluster, one a rank, and none of it in this process.

    The script is started once, on a machine of the cluster. Each `launch` takes a placement group
    with a bundle for every node of the run, makes the actors there, and ends with them. Everything
    that the ranks need is pickled by Ray's cloudpickle, so that it also works from a notebook, and
    what the script itself defines needs no import.
    """

    calls_in_place = False
    pickles = True

    def __init__(
        self,
        address: str | None = None,
        *,
        resources_per_worker: Mapping[str, float] | None = None,
        use_gpu: bool | None = None,
        placement_strategy: str = "STRICT_SPREAD",
        placement_timeout_s: float = 100.0,
        max_failures: int = 0,
        runtime_env: Mapping[str, Any] | None = None,
        init_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the launcher.

        Args:
            address: of a running cluster, such as `"auto"` or `"10.0.0.1:6379"`. None: the
                connection that this process has; or what `RAY_ADDRESS` says; or a local cluster,
                which starts and ends with each launch.
            resources_per_worker: of Ray's, that each rank takes, such as `{"CPU": 4}`. None: one
                CPU.
            use_gpu: Ray gives each rank the GPUs that it uses. None: if the accelerator is
                `"cuda"`. False leaves them to those who start several runs: Ray hides none and
                counts none.
            placement_strategy: how the nodes of the run lie on the machines of the cluster.
                `"STRICT_SPREAD"`: each on a machine of its own. `"SPREAD"` and `"PACK"` try to
                spread or to join them, and `"STRICT_PACK"` puts all on one machine. The ranks of
                one node of the run are always on one machine.
            placement_timeout_s: seconds to wait for room in the cluster.
            max_failures: how often the run is started again after a worker or its node was lost.
                Training goes on from the newest checkpoint with `fit(..., ckpt_path="last")`;
                without, it begins again.
            runtime_env: of the workers, as Ray takes it: `env_vars`, `working_dir`, `pip`, ...
            init_options: given to `ray.init` beside the address, where this launcher calls it.

        Raises:
            ConfigurationError: an option makes no sense.
        """
        self.address = address
        self.resources_per_worker = dict(resources_per_worker or {"CPU": 1})
        self.use_gpu = use_gpu
        self._num_gpus = 0
        self.placement_strategy = placement_strategy
        self.placement_timeout_s = placement_timeout_s
        self.max_failures = max_failures
        self.runtime_env = dict(runtime_env or {})
        self.init_options = dict(init_options or {})
        self._check_options()

    def _check_options(self) -> None:
        if self.placement_strategy not in _PLACEMENTS:
            raise ConfigurationError(
                f"placement_strategy={self.placement_strategy!r}: expected one of "
                f"{', '.join(map(repr, _PLACEMENTS))}."
            )
        if self.address is not None and self.address.startswith("ray://"):
            raise ConfigurationError(
                f"address={self.address!r} is one of Ray's client, which keeps the program outside "
                "of the cluster. Start it on a machine of the cluster, with `ray job submit` for "
                "example, and pass address='auto'."
            )
        if self.max_failures < 0:
            raise ConfigurationError(
                f"max_failures={self.max_failures}: expected a number of restarts from 0."
            )
        if self.placement_timeout_s <= 0:
            raise ConfigurationError(
                f"placement_timeout_s={self.placement_timeout_s}: expected seconds above 0."
            )
        if wrong := {
            name: amount for name, amount in self.resources_per_worker.items() if not amount > 0
        }:
            raise ConfigurationError(
                f"resources_per_worker has {wrong}: expected amounts above 0; leave out the rest."
            )

    def count_devices(
        self, accelerator: Accelerator, devices: int | list[int] | Literal["auto"], num_nodes: int
    ) -> int | None:
        """The number of GPUs that each node of the run takes, whatever this machine has; None for
        other devices.

        Raises:
            ConfigurationError: GPUs were asked for that the accelerator doesn't use.
            DeviceError: indices, which Ray chooses; or the cluster has no GPUs, or not on as many
                machines.
        """
        self._num_gpus = 0
        if not isinstance(accelerator, CUDAAccelerator):
            if self.use_gpu:
                raise ConfigurationError(
                    "use_gpu=True takes GPUs, and the ranks are on accelerator "
                    f"{accelerator.name!r}. Pass accelerator='cuda', which this machine needs no "
                    "GPU for, or leave use_gpu out."
                )
            return None
        if isinstance(devices, list):
            raise DeviceError(
                f"devices={devices}: Ray chooses GPUs for the ranks. Say how many: "
                f"devices={len(devices)}."
            )
        if self._is_local:
            number = len(accelerator.parse_devices(devices))
        elif devices in ("auto", -1):
            number = cluster.gpus_of_a_node(
                cluster.where(self.address), num_nodes, self.init_options
            )
        else:
            number = int(devices)
        self._num_gpus = 0 if self.use_gpu is False else number
        return number

    @property
    def _is_local(self) -> bool:
        """True if the cluster would begin with the run, on this machine."""
        return not library.load().is_initialized() and cluster.where(self.address) == cluster.LOCAL

    def configure_cluster_environment(self) -> ClusterEnvironment:
        """The environment of ranks that are on nodes where the script isn't started."""
        return RayEnvironment()

    def check(self) -> None:
        """Refuse where Ray isn't installed, and several machines where there is but one.

        Raises:
            LaunchError: a local cluster can't have as many nodes as are asked for.
            PluginLoadError: Ray can't be imported.
        """
        if (
            self._is_local
            and self.num_nodes > 1
            and self.placement_strategy in ("STRICT_SPREAD", "SPREAD")
        ):
            raise LaunchError(
                f"num_nodes={self.num_nodes} needs a Ray cluster of as many machines, and this "
                "launcher would start a local one. Pass RayLauncher(address='auto') on a machine "
                "of a running cluster, or set RAY_ADDRESS; or use placement_strategy='PACK' to "
                "have all nodes of the run on this machine."
            )

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the function in a Ray actor for every rank, on all nodes. Returns the result of rank
        0.

        Raises:
            LaunchError: there is no cluster, or no room in it; or an argument can't be pickled, and
                is named.
            LostWorkerError: a worker or its node is gone, more often than `max_failures` allows.
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
            who="The launcher 'ray'",
            cure="Make it in the module or function that runs on the ranks.",
            pickle_module=library.load("ray.cloudpickle"),
        )
        node = {name: amount * self.num_processes for name, amount in self._resources().items()}
        bundles = [node] * self.num_nodes
        with (
            cluster.connected(cluster.where(self.address), bundles, self.init_options),
            SignalForwarder() as signals,
        ):
            result = self._run(library.load().put(file.getvalue()), bundles, signals)
            signals.raise_for()
        return read_result(io.BytesIO(result))

    def _run(self, call: Any, bundles: list[dict[str, float]], signals: SignalForwarder) -> bytes:
        """Attempts, until one comes to its end."""
        for attempt in range(self.max_failures + 1):
            ranks = RankActors(self.num_processes)
            with cluster.room(bundles, self.placement_strategy, self.placement_timeout_s) as group:
                try:
                    ranks.start(group, self.num_nodes, self._actor_options())
                    signals.to(ranks)
                    return ranks.run(call, {"CORE_RAY_RESTART_COUNT": str(attempt)})
                except LostWorkerError as error:
                    if attempt == self.max_failures:
                        raise
                    warnings.warn(
                        f"{error}\nThe run is started again: restart {attempt + 1} of at most "
                        f"{self.max_failures}.",
                        RuntimeWarning,
                        stacklevel=2,
                    )
                finally:
                    ranks.end()
        raise AssertionError("the last attempt returns or raises")

    def _resources(self) -> dict[str, float]:
        """The resources of a rank. Most strategies have one for each device; some drive all of a
        node by one.
        """
        return (
            {"GPU": self._num_gpus / self.num_processes} if self._num_gpus else {}
        ) | self.resources_per_worker

    def _actor_options(self) -> dict[str, Any]:
        resources = self._resources()
        own = {
            "num_cpus": resources.pop("CPU", 0),
            "num_gpus": resources.pop("GPU", 0),
            "resources": resources,
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        return own | self._runtime_env()

    def _runtime_env(self) -> dict[str, Any]:
        """The workers' environment: the user's, and the variables of this process that steer
        core.
        """
        own = {
            name: value
            for name, value in os.environ.items()
            if name.startswith("CORE_") and name not in _OF_A_RANK
        }
        variables = own | dict(self.runtime_env.get("env_vars") or {})
        environment = self.runtime_env | ({"env_vars": variables} if variables else {})
        return {"runtime_env": environment} if environment else {}
