"""Arguments that are one thing or several."""

from __future__ import annotations

from typing import Any


def as_list(given: Any) -> list[Any]:
    """The items of a list or tuple, or the one thing itself; nothing for None."""
    if given is None:
        return []
    if isinstance(given, list | tuple):
        return list(given)
    return [given]
