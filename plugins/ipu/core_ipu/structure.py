"""Nested data as a flat list of tensors and back: a compiled program takes and returns tensors
only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core import ConfigurationError
from core.data import map_leaves

if TYPE_CHECKING:
    from collections.abc import Callable


class Slot:
    """The place of a tensor in a structure. There is one for each number, so that structures can be
    compared.
    """


_slots: list[Slot] = []


def take_apart(
    data: Any, other: Callable[[Any], Any] | None = None
) -> tuple[list[torch.Tensor], Any]:
    """The tensors of a structure, in order, and the structure with a `Slot` in the place of each.

    Args:
        data: nested data.
        other: gets every leaf that is no tensor, and returns what is to stand in its place.
    """
    tensors: list[torch.Tensor] = []

    def take(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf if other is None else other(leaf)
        number = len(tensors)
        tensors.append(leaf)
        if number == len(_slots):
            _slots.append(Slot())
        return _slots[number]

    return tensors, map_leaves(take, data)


def put_together(structure: Any, tensors: list[Any]) -> Any:
    """The structure, with a value in each `Slot`, in order."""
    if isinstance(structure, Slot):
        return tensors[0]
    rest = iter(tensors)
    return map_leaves(lambda leaf: next(rest) if isinstance(leaf, Slot) else leaf, structure)


def tensors_of_batch(batch: Any) -> tuple[list[torch.Tensor], Any]:
    """The same for a batch, in which nothing but tensors may change from one to the next.

    Raises:
        ConfigurationError: it holds something else, which would be compiled into the program as it
            is in this batch.
    """
    tensors, structure = take_apart(batch, _refuse)
    if not tensors:
        raise ConfigurationError(
            f"A batch ({type(batch).__name__}) holds no tensor, and a compiled program takes some."
        )
    return tensors, structure


def _refuse(leaf: Any) -> Any:
    if leaf is not None:
        raise ConfigurationError(
            f"A batch holds {leaf!r:.80} ({type(leaf).__name__}), and a compiled program takes "
            "tensors only. Leave it out in the loader's collate_fn, or make it a tensor with a row "
            "for each sample."
        )
    return leaf
