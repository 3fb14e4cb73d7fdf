"""Checks of arguments that several callbacks share."""

from __future__ import annotations

from typing import Any

from core.contract import ConfigurationError


def check_mode(who: str, mode: str) -> None:
    """Refuse a direction that isn't one.

    Raises:
        ConfigurationError: it is neither `"min"` nor `"max"`.
    """
    if mode not in ("min", "max"):
        raise ConfigurationError(f"{who}(mode={mode!r}): expected 'min' if less is better, or 'max' if more is.")


def check_int(who: str, name: str, value: Any, *, least: int, meaning: str) -> None:
    """Refuse what isn't a whole number of at least so much.

    Args:
        who: the callback.
        name: of the argument.
        value: what the user gave.
        least: smallest good value.
        meaning: what the message says that it expected.

    Raises:
        ConfigurationError: it isn't.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{who}({name}={value!r}): expected {meaning}.")
