"""Arguments of callbacks, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.contract import Capability, Strategy


def check_choice(who: str, name: str, value: object, choices: Sequence[object]) -> None:
    """Refuse a value that isn't among the possible ones.

    Args:
        who: the callback.
        name: of the argument.
        value: what the user gave.
        choices: what is possible.

    Raises:
        ConfigurationError: it isn't one of them.
    """
    if value not in choices:
        raise ConfigurationError(
            f"{who}({name}={value!r}): expected {' or '.join(map(repr, choices))}."
        )


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


def refuse_capabilities(
    who: str, strategy: Strategy, refused: Capability, *, reason: str, cure: str
) -> None:
    """Refuse a strategy that does by itself, or in a form of its own, what a callback needs.

    Args:
        who: the callback.
        strategy: of the run.
        refused: what it must not have.
        reason: what the callback needs, in words.
        cure: what the user can do.

    Raises:
        UnsupportedError: with what it has of them.
    """
    found = strategy.capabilities & refused
    if found:
        names = " and ".join(one.name or "" for one in found)
        raise UnsupportedError(
            f"{who} {reason}, and {type(strategy).__name__} has {names}. {cure}", capability=found
        )
