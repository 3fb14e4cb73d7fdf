"""Decides what a run uses of its machines: the cluster environment, the nodes, the kind of device
and the devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from core.resolve.accelerator import choose_accelerator, choose_devices, devices_of_nodes
from core.resolve.decision import Choice, Decision
from core.resolve.devices import check_num_nodes
from core.resolve.parts import choose_cluster_environment, passed_launcher

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from core.contract import Accelerator, ClusterEnvironment, Launcher
    from core.contract.accelerator import Devices
    from core.resolve.plugins import Plugins

FIELDS = frozenset({"accelerator", "cluster_environment", "parallel_devices"})
"""The parts of a strategy that are decided here."""


class Machines(NamedTuple):
    """The choices, in their order.

    Attributes:
        environment: the cluster environment.
        num_nodes: number of machines.
        launcher: the one that was passed, if one was.
        accelerator: the kind of device.
        devices: those of this node.
        decision: says which devices, and why.
    """

    environment: Choice[ClusterEnvironment]
    num_nodes: int
    launcher: Choice[Launcher] | None
    accelerator: Choice[Accelerator]
    devices: list[torch.device]
    decision: Decision


def choose_machines(
    accelerator: str | Accelerator,
    devices: Devices,
    num_nodes: int | Literal["auto"],
    plugins: Plugins,
    given: Mapping[str, object],
) -> Machines:
    """Decide them, by the user's arguments and the parts that the user's strategy brings.

    Raises:
        ConfigurationError: the arguments contradict each other, or the surroundings.
        DeviceError: such devices are not here.
    """
    environment = choose_cluster_environment(plugins, given)
    num_nodes = check_num_nodes(num_nodes, environment.part)
    passed = passed_launcher(environment, plugins)
    launcher, counted = passed, None
    if environment.part.creates_processes:
        launcher = None
    kind = choose_accelerator(accelerator, given, launcher)
    if launcher is not None:
        counted = devices_of_nodes(launcher.part, kind, devices, num_nodes, given)
    # Where a scheduler has started the processes, `devices="auto"` is one device for each of them.
    chosen, decision = choose_devices(
        devices, kind.part, environment.part, num_nodes, given, counted
    )
    return Machines(environment, num_nodes, passed, kind, chosen, decision)
