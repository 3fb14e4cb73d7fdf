"""Numbers and lists as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.cli import size_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from torch import Tensor

Row = tuple[str, str, str]
"""A row of `core explain`: what it is about, what is so, and the reason."""


def listed(items: Iterable[str], most: int = 4) -> str:
    """The items, the last of many after an ellipsis."""
    found = [*items]
    if len(found) > most:
        found[most - 1 : -1] = ["..."]
    return ", ".join(found)


def count_text(parameters: Collection[Tensor]) -> str:
    """A number of parameters, with their bytes."""
    count = sum(one.numel() for one in parameters)
    return f"{count:,} parameters, {size_text(sum(one.nbytes for one in parameters))}"
