"""`barebones=True`: a loop with nothing around it, to measure what the rest costs."""

from __future__ import annotations

from typing import Any

from core.contract import ConfigurationError


def check_barebones(**given: Any) -> None:
    """Refuse arguments that ask for what barebones leaves out.

    Args:
        given: the Trainer's arguments that do, by name; None, False and 0 ask for nothing.

    Raises:
        ConfigurationError: with the first one.
    """
    for name, value in given.items():
        if value:
            raise ConfigurationError(
                f"barebones=True leaves out everything but the loop, and {name}={value!r} was passed. "
                "Leave one of the two out."
            )
