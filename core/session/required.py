"""The check that a strategy's method has returned something."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from core.contract.errors import ConfigurationError

if TYPE_CHECKING:
    from core.contract.strategy import Strategy

T = TypeVar("T")


def required(strategy: Strategy, method: str, returned: T | None, expected: str) -> T:
    """What a method has returned; None is refused, since an override may forget its `return`.

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
