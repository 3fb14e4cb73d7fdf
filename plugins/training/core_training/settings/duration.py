"""Durations, in the forms that users write."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta

from core.contract import ConfigurationError


def parse_duration(name: str, value: timedelta | Mapping[str, int] | str) -> timedelta:
    """Understand a duration.

    Args:
        name: of the argument, for the message.
        value: a timedelta, its arguments, or days, hours, minutes and seconds.

    Raises:
        ConfigurationError: it is of no known form, or negative.
    """
    duration = None
    with suppress(TypeError, ValueError):
        if isinstance(value, timedelta):
            duration = value
        elif isinstance(value, str):
            days, hours, minutes, seconds = map(int, value.split(":"))
            duration = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        else:
            duration = timedelta(**value)
    if duration is None or duration < timedelta(0):
        raise ConfigurationError(
            f"{name}={value!r}: expected a timedelta, a dict such as {{'hours': 2}}, or "
            "'DD:HH:MM:SS'."
        )
    return duration
