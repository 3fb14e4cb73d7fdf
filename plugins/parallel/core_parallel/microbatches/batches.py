"""The user's batch, cut into the batches of its microbatches."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from core import ModuleError
from core.data import map_leaves
from core_fsdp.same_batches import leaves
from core_parallel.microbatches import pieces

_PLAIN = (str, bytes, int, float, bool, type(None))


def cut_batch(batch: Any, size: int, num_pieces: int) -> list[Any]:
    """Cut a batch along its samples.

    Args:
        batch: tensors, arrays, and lists and tuples with an entry for each sample, in containers of
            any depth. What has another first dimension, numbers and strings go into all pieces.
        size: number of samples; `num_pieces` divides it.
        num_pieces: number of pieces.

    Raises:
        ModuleError: there is an object in it that can't be cut.
    """
    length = size // num_pieces
    return [
        _piece(batch, size, slice(index * length, (index + 1) * length))
        for index in range(num_pieces)
    ]


def _piece(batch: Any, size: int, part: slice) -> Any:
    def is_cut(data: Any) -> bool:
        """True if a list has an entry for each sample."""
        return (
            type(data) in (list, tuple)
            and len(data) == size
            and not any(_has_samples(one, size) for one in data)
        )

    def cut(leaf: Any) -> Any:
        if isinstance(leaf, list | tuple):
            return leaf[part]
        if isinstance(leaf, _PLAIN) or not getattr(leaf, "ndim", 1):
            return leaf
        if not hasattr(leaf, "shape") or not hasattr(leaf, "ndim"):
            raise ModuleError(
                f"The batch holds a {type(leaf).__name__}, which can't be cut into microbatches. "
                "Hand over tensors, lists with an entry for each sample, dicts and dataclasses of "
                "them; or leave schedule out."
            )
        return leaf[part] if len(leaf) == size else leaf

    return map_leaves(cut, batch, is_leaf=is_cut, of_all=True)


def _has_samples(data: Any, size: int) -> bool:
    return any(getattr(leaf, "ndim", 0) and len(leaf) == size for leaf in leaves(data))


def has_mask(batch: Any, size: int) -> bool:
    """True if there is a mask between positions in it, as many as there are samples by accident."""
    return pieces.has_mask(
        [leaf for leaf in leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim], size
    )


def shapes_of(batch: Any) -> str:
    """A key of everything in a batch that shapes may follow from."""
    return repr(
        [
            (tuple(one.shape), str(one.dtype)) if isinstance(one, Tensor) else type(one)
            for one in leaves(batch)
        ]
    )
