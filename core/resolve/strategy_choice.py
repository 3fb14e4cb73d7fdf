"""Chooses the strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract import ConfigurationError, Strategy, UnknownAliasError
from core.launch.script import is_notebook
from core.registry import DEFAULT_PARALLEL_STRATEGY, known_aliases
from core.registry.known_plugins import pip_install
from core.registry.names import split_name
from core.resolve.candidates import create, passed, refuse_class

if TYPE_CHECKING:
    from core.contract import Accelerator
    from core.resolve.decision import Choice

KIND = "strategy"

_ONE_DEVICE = "single_device"


def check_strategy_argument(argument: object) -> None:
    """Refuse what is neither a name nor an instance.

    Raises:
        ConfigurationError: with the form to write.
    """
    if isinstance(argument, str | Strategy):
        return
    refuse_class(KIND, argument, Strategy)
    raise ConfigurationError(
        f"strategy={argument!r}: expected a name such as 'ddp' (see `core list-strategies`), "
        "or an instance of core.Strategy."
    )


def choose_strategy(
    argument: str | Strategy,
    accelerator: Accelerator,
    num_devices: int,
    num_nodes: int,
    *,
    makes_processes: bool = True,
) -> Choice[Strategy]:
    """Decide the strategy; its other parts are still open.

    Args:
        argument: what the user asked for.
        accelerator: the kind of device.
        num_devices: of each node.
        num_nodes: number of machines.
        makes_processes: nothing has made the processes yet.

    Raises:
        ConfigurationError: no provider offers it, it makes no sense on this accelerator, or none
            was named and the one that several devices need isn't installed.
    """
    if isinstance(argument, Strategy):
        return passed(KIND, argument)
    if argument.strip().casefold() != "auto":
        return _adapted(argument, f"strategy={argument!r} was asked for", accelerator, num_devices)
    given = f"{_count(num_devices, 'device')} on {_count(num_nodes, 'node')}"
    wanted = f"auto: {given}"
    alias = accelerator.default_strategy(num_devices, num_nodes)
    if alias is not None:
        return create(KIND, alias, f"{wanted}, and {accelerator.name} chooses this one")
    if num_devices * num_nodes == 1:
        return create(KIND, _ONE_DEVICE, wanted)
    try:
        chosen = _adapted(DEFAULT_PARALLEL_STRATEGY, wanted, accelerator, num_devices)
    except UnknownAliasError as unknown:
        if unknown.alias != DEFAULT_PARALLEL_STRATEGY:
            raise
        package = known_aliases(KIND)[DEFAULT_PARALLEL_STRATEGY]
        raise ConfigurationError(
            f"{given} and no strategy: that takes {DEFAULT_PARALLEL_STRATEGY!r}, which is not "
            f"installed. Run {pip_install(package)}, name another strategy (see "
            "`core list-strategies`), or use devices=1."
        ) from unknown
    alias = chosen.part.interactive_alias
    if makes_processes and alias is not None and is_notebook():
        return create(KIND, alias, f"{wanted}, in a notebook, which has no file for ranks to run")
    return chosen


def _adapted(
    name: str, reason: str, accelerator: Accelerator, num_devices: int
) -> Choice[Strategy]:
    """The strategy of this name, or what the accelerator maps it to."""
    alias = split_name(name)[1]
    adapted = accelerator.adapt_strategy(alias, num_devices)
    if adapted == alias:
        return create(KIND, name, reason)
    return create(KIND, adapted, f"{reason}, and on {accelerator.name} {alias!r} means this one")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
