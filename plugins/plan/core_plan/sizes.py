"""Amounts of memory, as users write them."""

from __future__ import annotations

import re

from core import ConfigurationError

_UNITS = {
    f"{letter}{i}B": (1024 if i else 1000) ** power
    for power, letter in enumerate("KMGT", 1)
    for i in ("i", "")
}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B)\s*", re.IGNORECASE)


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
    units = {name.lower(): size for name, size in _UNITS.items()}
    return int(float(found[1]) * units[found[2].lower()])
