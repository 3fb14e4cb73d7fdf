"""The check that a strategy's method has returned something."""

from __future__ import annotations

from typing import TypeVar

from core.contract.errors import ConfigurationError

T = TypeVar("T")


def required(strategy: object, method: str, returned: T | None, expected: str) -> T:
    """The value that a method has returned. None is refused: an override may forget its `return`.

    Args:
        strategy: whose method.
        method: its name.
        returned: by it.
        expected: what the method has to return.

    Raises:
        ConfigurationError: it has returned None.
    """
    if returned is None:
        kind = type(strategy)
        cure = "Return it."
        if any(hasattr(base, method) for base in kind.__bases__):
            cure = f"Return what super().{method}(...) returns, or your own."
        raise ConfigurationError(
            f"{kind.__name__}.{method} returned None; expected {expected}. {cure}"
        )
    return returned
