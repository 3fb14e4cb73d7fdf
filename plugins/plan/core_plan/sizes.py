"""Amounts of memory, as users write them."""

from __future__ import annotations

import re

from core import ConfigurationError

_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT])(i?)B\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """The bytes that `"80GiB"` (of 1024 each) or `"80 GB"` (of 1000) names.

    Raises:
        ConfigurationError: it has no number, or no unit.
    """
    found = _WRITTEN.fullmatch(text)
    if found is None:
        raise ConfigurationError(
            f"{text!r}: expected a number and a unit, such as 80GiB, 80GB or 512MiB."
        )
    base = 1000
    if found[3]:
        base = 1024
    return int(float(found[1]) * base ** (1 + "KMGT".index(found[2].upper())))
