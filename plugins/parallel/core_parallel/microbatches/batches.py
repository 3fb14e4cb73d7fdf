"""The user's batch, cut into the batches of its microbatches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from core import ModuleError
from core.data import map_leaves

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


def _piece(batch: Any, size: int, part: slice | Sequence[int]) -> Any:
    def is_cut(data: Any) -> bool:
        """True if a list has an entry for each sample."""
        return type(data) in (list, tuple) and len(data) == size and not any(_has_samples(one, size) for one in data)

    def cut(leaf: Any) -> Any:
        if isinstance(leaf, list | tuple):
            return type(leaf)(leaf[index] for index in (range(size)[part] if isinstance(part, slice) else part))
        if isinstance(leaf, _PLAIN) or not getattr(leaf, "ndim", 1):
            return leaf
        if not hasattr(leaf, "shape") or not hasattr(leaf, "ndim"):
            raise ModuleError(
                f"The batch holds a {type(leaf).__name__}, which can't be cut into microbatches. Hand over tensors, "
                "lists with an entry for each sample, dicts and dataclasses of them; or leave schedule out."
            )
        return leaf[part] if len(leaf) == size else leaf

    return map_leaves(cut, batch, is_leaf=is_cut, of_all=True)


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
