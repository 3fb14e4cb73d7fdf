"""Checks of a strategy's class: what it declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract import (
    Capability,
    ComputesLoss,
    ConfigurationError,
    MakesOptimizers,
    SetsUpJointly,
)

if TYPE_CHECKING:
    from core.contract import Strategy

PROTOCOLS: dict[Capability, type] = {
    Capability.JOINT_SETUP: SetsUpJointly,
    Capability.MAKES_OPTIMIZERS: MakesOptimizers,
    Capability.COMPUTES_LOSS: ComputesLoss,
}
"""The methods that a capability promises, which aren't those of every strategy."""


def check_declared(strategy: Strategy) -> None:
    """Main process, once the strategy is connected. Check its capabilities, their methods, and the
    types of devices.

    Raises:
        ConfigurationError: what was declared, and what is expected.
    """
    found: object = strategy.capabilities
    if not isinstance(found, Capability):
        raise ConfigurationError(
            f"{type(strategy).__name__}.capabilities is {found!r:.100}; expected a "
            "core.Capability. If it is a method, put @property before it."
        )
    for capability, protocol in PROTOCOLS.items():
        names = [name for name in vars(protocol) if not name.startswith("_")]
        missing = [name for name in names if not callable(getattr(strategy, name, None))]
        if missing and capability in strategy.capabilities:
            raise ConfigurationError(
                f"{type(strategy).__name__} declares Capability.{capability.name}, which promises "
                f"the methods of core.contract.{protocol.__name__}, and has no {missing[0]}(). "
                "Write it, or take the capability away."
            )
    types, device_type = strategy.device_types, strategy.parallel_devices[0].type
    if types and device_type not in types:
        kinds = " or ".join(map(repr, types))
        raise ConfigurationError(
            f"{type(strategy).__name__} trains on devices of type {kinds}, and this run is on "
            f"{device_type!r}. Pass accelerator={kinds}, or leave the strategy to strategy='auto'."
        )
