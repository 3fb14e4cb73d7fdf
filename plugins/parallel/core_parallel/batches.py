"""The user's batch, cut into the batches of its microbatches."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from core import ModuleError
from core.data import map_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_PLAIN = (str, bytes, int, float, bool, type(None))


def cut_batch(batch: Any, size: int, num_pieces: int) -> list[Any]:
    """Cut a batch along its samples.

    Args:
        batch: tensors, arrays, and lists and tuples with an entry for each sample, in containers of any depth. What has
            another first dimension, numbers and strings go into all pieces.
        size: number of samples; `num_pieces` divides it.
        num_pieces: number of pieces.

    Raises:
        ModuleError: there is an object in it that can't be cut.
    """
    length = size // num_pieces
    return [_piece(batch, size, slice(index * length, (index + 1) * length)) for index in range(num_pieces)]


def first_everywhere(batch: Any, size: int, num_pieces: int) -> Any:
    """A batch of the same form, whose pieces are all as the first one is; see `cut_batch`."""
    return _piece(batch, size, [*range(size // num_pieces)] * num_pieces)


def _piece(data: Any, size: int, part: slice | Sequence[int]) -> Any:
    if type(data) in (list, tuple) and len(data) == size and not any(_has_samples(one, size) for one in data):
        return type(data)(data[index] for index in (range(size)[part] if isinstance(part, slice) else part))

    def cut(leaf: Any) -> Any:
        if isinstance(leaf, _PLAIN) or not getattr(leaf, "ndim", 1):
            return leaf
        if not hasattr(leaf, "shape") or not hasattr(leaf, "ndim"):
            raise ModuleError(
                f"The batch holds a {type(leaf).__name__}, which can't be cut into microbatches. Hand over tensors, "
                "lists with an entry for each sample, dicts and dataclasses of them; or leave schedule out."
            )
        return leaf[part] if len(leaf) == size else leaf

    changed = _with_entries(data, lambda one: _piece(one, size, part))
    return map_leaves(cut, data) if changed is None else changed


def _with_entries(data: Any, function: Callable[[Any], Any]) -> Any:
    """A container with each of its entries changed; None for anything else."""
    if isinstance(data, list | tuple):
        return data._make(map(function, data)) if hasattr(data, "_make") else type(data)(map(function, data))
    declared = fields(data) if is_dataclass(data) else getattr(type(data), "__attrs_attrs__", None)
    if declared is None and not isinstance(data, MutableMapping):
        return None
    clone = copy.copy(data)
    if declared is None:
        clone.update({key: function(one) for key, one in data.items()})
    for name in (field.name for field in declared or () if hasattr(data, field.name)):
        object.__setattr__(clone, name, function(getattr(data, name)))  # also where the class is frozen
    return clone


def _has_samples(data: Any, size: int) -> bool:
    return any(getattr(leaf, "ndim", 0) and len(leaf) == size for leaf in _leaves(data))


def _leaves(data: Any) -> Iterator[Any]:
    found: list[Any] = []

    def note(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    map_leaves(note, data)
    yield from found


def shapes_of(batch: Any) -> str:
    """A key of everything in a batch that shapes may follow from."""
    return repr(
        [(tuple(one.shape), str(one.dtype)) if isinstance(one, Tensor) else type(one) for one in _leaves(batch)]
    )
