"""The tensors that an operation is given or returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among an operation's arguments or results, and those in lists of them."""
    found: list[Tensor] = []
    for one in values:
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, list | tuple):
            found += tensors_in(one)
    return found
