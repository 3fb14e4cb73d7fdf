"""Turns the user's arguments into one strategy, with a reason for every choice.

The steps stand in `resolve` in their order: cluster environment, launcher if it was passed,
accelerator, devices, strategy, precision, checkpoint IO, the strategy's launcher, checks. Each is a
function of what was decided before it. No process is started here, and no device is touched.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

from core._version import DISTRIBUTION, __version__
from core.contract import Strategy
from core.resolve.candidates import create
from core.resolve.decision import Choice, Decision, Resolution
from core.resolve.declared import check_declared
from core.resolve.devices import check_devices
from core.resolve.machines import FIELDS, choose_machines
from core.resolve.parts import (
    choose_checkpoint_io,
    choose_precision,
    launchers_environment,
)
from core.resolve.plugins import sort_plugins
from core.resolve.strategy_choice import check_strategy_argument, choose_strategy
from core.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.contract import Accelerator, Precision
    from core.contract.accelerator import Devices
    from core.contract.spec import Fingerprint

__all__ = ["Decision", "Resolution", "resolve"]

_log = logging.getLogger("core")


def resolve(
    *,
    strategy: str | Strategy = "auto",
    accelerator: str | Accelerator = "auto",
    devices: Devices = "auto",
    num_nodes: int | Literal["auto"] = 1,
    precision: str | int | Precision | None = None,
    plugins: Sequence[Any] | None = (),
) -> Resolution:
    """Main process. Decide what the user left open, and put the strategy together.

    Args:
        strategy: a registered name, qualified (`"core-acme:acme"`) where several offer it; an
            instance; or `"auto"`. The options and parts that an instance or a registered preset was
            made with are kept.
        accelerator: a registered name, `"gpu"`, an instance, or `"auto"`: the best of those that
            are here.
        devices: on each node how many (`2`, `"2"`), which (`[1, 3]`, `"1,3"`), all (`-1`), or
            `"auto"`: what a scheduler has started, or else `Accelerator.default_num_devices`.
        num_nodes: number of machines; `"auto"` is the number that the cluster environment has, or
            1.
        precision: a registered name (`"bf16-mixed"`), a number (`16`), an instance, or None for
            float32.
        plugins: instances or names of Precision, CheckpointIO, ClusterEnvironment and Launcher; one
            of each.

    Raises:
        ConfigurationError: what was asked, why it can't be, and the nearest that can.
        PluginLoadError: a plugin that was asked for can't be loaded.
        LaunchError: processes can't be made here in the way that the strategy needs.
    """
    check_strategy_argument(strategy)
    check_devices(devices)
    own = sort_plugins(plugins)
    # Of an instance that another Trainer had: what the user gave, without what was filled in there.
    given = Session.of(strategy).given_parts() if isinstance(strategy, Strategy) else {}

    machines = choose_machines(accelerator, devices, num_nodes, own, given)
    chosen = choose_strategy(
        strategy,
        machines.accelerator.part,
        len(machines.devices),
        machines.num_nodes,
        makes_processes=not machines.environment.part.creates_processes,
    )
    if not isinstance(strategy, Strategy):
        # A preset's own parts count as an instance's do; those that were chosen before it are
        # chosen once more.
        given = Session.of(chosen.part).given_parts()
        if given.keys() & FIELDS:
            machines = choose_machines(accelerator, devices, num_nodes, own, given)
    formats = choose_precision(precision, chosen.part, chosen.identity, own, given)
    checkpoint_io = choose_checkpoint_io(chosen.part, own, given)
    asked = f"{type(chosen.part).__name__} asks for it"
    launcher = machines.launcher or create("launcher", chosen.part.launcher_name, asked)
    environment = launchers_environment(launcher, machines.environment, own, given)

    # The strategy before the launcher: the number of processes follows from its devices.
    session = Session.of(chosen.part)
    session.connect(
        accelerator=machines.accelerator.part,
        parallel_devices=machines.devices,
        num_nodes=machines.num_nodes,
        cluster_environment=environment.part,
        launcher=launcher.part,
        precision_plugin=formats.part,
        checkpoint_io=checkpoint_io.part,
        fingerprint=_fingerprint(machines.accelerator, environment, chosen, formats, checkpoint_io),
    )
    launcher.part.connect(
        cluster_environment=environment.part,
        num_processes=chosen.part.num_processes_per_node,
        num_nodes=machines.num_nodes,
        interactive_alias=chosen.part.interactive_alias,
    )
    # Before any process starts: does it all go together?
    check_declared(chosen.part)
    chosen.part.check()
    environment.part.validate(chosen.part.num_processes_per_node, machines.num_nodes)
    launcher.part.check()
    nodes = Decision("nodes", str(machines.num_nodes), f"num_nodes={num_nodes}")
    parts = [part.decision for part in (environment, chosen, formats, checkpoint_io, launcher)]
    resolution = Resolution(
        session, (machines.accelerator.decision, machines.decision, nodes, *parts)
    )
    if environment.part.global_rank() == 0:
        _log.info(resolution.summary)
    return resolution


def _fingerprint(*choices: Choice[Any]) -> Fingerprint:
    """The fingerprint that ranks compare before they communicate."""
    import torch

    names = [(choice.subject, choice.identity) for choice in choices]
    parts = [(subject, name.alias, name.provider, name.version) for subject, name in names]
    return (
        *parts,
        ("core", "core", DISTRIBUTION, __version__),
        ("torch", "torch", "torch", torch.__version__),
    )
