"""Numbers and lists as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.cli import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

Row = tuple[str, str, str]
"""A row of `core explain`: what it is about, what is so, and the reason."""


def listed(items: Iterable[str], most: int = 4) -> str:
    """The items, the last of many after an ellipsis."""
    found = [*items]
    return ", ".join(found if len(found) <= most else [*found[: most - 1], "...", found[-1]])


def count_text(parameters: Iterable[Tensor]) -> str:
    """A number of parameters, with their bytes."""
    own = [*parameters]
    return (
        f"{sum(one.numel() for one in own):,} parameters, "
        f"{size_text(sum(one.nbytes for one in own))}"
    )
