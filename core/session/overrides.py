"""Checks for what an override of a strategy's member may have forgotten: a `return`, a decorator."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from core.contract.capability import Capability
from core.contract.errors import ConfigurationError

if TYPE_CHECKING:
    from core.contract.strategy import Strategy

T = TypeVar("T")


def check_capabilities(strategy: Strategy) -> None:
    """Main process, once the strategy is connected.

    Raises:
        ConfigurationError: they are no `Capability`.
    """
    found: object = strategy.capabilities
    if not isinstance(found, Capability):
        raise ConfigurationError(
            f"{type(strategy).__name__}.capabilities is {found!r:.100}; expected a core.Capability. If it is a method, "
            "put @property before it."
        )


def required(strategy: Strategy, method: str, returned: T | None, expected: str) -> T:
    """Return what a method has returned; refuse None.

    Args:
        strategy: whose method it is.
        method: its name.
        returned: by it.
        expected: what the method has to return.

    Raises:
        ConfigurationError: it has returned None.
    """
    if returned is None:
        raise ConfigurationError(
            f"{type(strategy).__name__}.{method} returned None; expected {expected}. Return what "
            f"super().{method}(...) returns, or your own."
        )
    return returned
