"""Checks of what a strategy's class declares, before any of its methods counts on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract.capability import Capability
from core.contract.errors import ConfigurationError

if TYPE_CHECKING:
    from core.contract.strategy import Strategy


def check_declared(strategy: Strategy) -> None:
    """Main process, once the strategy is connected: check its capabilities, and the devices against `device_types`.

    Raises:
        ConfigurationError: what was declared, and what is expected.
    """
    _check_capabilities(strategy)
    _check_devices(strategy)


def _check_capabilities(strategy: Strategy) -> None:
    found: object = strategy.capabilities
    if not isinstance(found, Capability):
        raise ConfigurationError(
            f"{type(strategy).__name__}.capabilities is {found!r:.100}; expected a core.Capability. If it is a method, "
            "put @property before it."
        )


def _check_devices(strategy: Strategy) -> None:
    expected, found = strategy.device_types, strategy.parallel_devices[0].type
    if expected and found not in expected:
        names = " or ".join(map(repr, expected))
        raise ConfigurationError(
            f"{type(strategy).__name__} trains on devices of type {names}, and this run is on {found!r}. "
            f"Pass accelerator={names}, or leave the strategy to strategy='auto'."
        )
