"""The check for what an override of a strategy's method may have forgotten: a `return`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from core.contract.errors import ConfigurationError

if TYPE_CHECKING:
    from core.contract.strategy import Strategy

T = TypeVar("T")


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
        is_override = any(hasattr(base, method) for base in type(strategy).__bases__)
        cure = f"Return what super().{method}(...) returns, or your own." if is_override else "Return it."
        raise ConfigurationError(f"{type(strategy).__name__}.{method} returned None; expected {expected}. {cure}")
    return returned
