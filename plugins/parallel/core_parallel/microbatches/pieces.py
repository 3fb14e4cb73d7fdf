"""Batches cut into microbatches along their first dim, and put together again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from core import ModuleError

if TYPE_CHECKING:
    from collections.abc import Sequence


def num_samples(tree: Any) -> int | None:
    """The first dim of the first tensor that has one."""
    return next(
        (len(leaf) for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor) and leaf.ndim),
        None,
    )


def is_unclear(tree: Any, num_samples: int | None, *, is_chosen: bool) -> bool:
    """True if the samples may be the second dim of the first tensor, and not the first, or a tensor
    is none of samples.

    Args:
        tree: nested lists, tuples and dicts.
        num_samples: of the batch that these arguments were made of; None if nobody knows.
        is_chosen: the user has said into how many pieces to cut, and so that samples are the first
            dim if they can be.
    """
    tensors = [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor) and leaf.ndim]
    first = tensors[0]
    if has_mask(tensors, len(first)):
        return True
    if num_samples is None or first.ndim < 2 or first.shape[1] != num_samples:
        return False
    return not is_chosen or len(first) != num_samples


def has_mask(tensors: Sequence[Tensor], size: int) -> bool:
    """True if one behind the first is a mask between positions, as many as there are samples by
    accident.
    """
    square = [one for one in tensors[1:] if tuple(one.shape) == (size, size)]
    return any(
        one.dtype == torch.bool or (one.is_floating_point() and bool((one < -1e4).any()))
        for one in square
    )


def split(tree: Any, num_pieces: int) -> list[Any]:
    """Cut every tensor whose first dim is that of the first one; anything else goes into all
    pieces.

    Args:
        tree: nested lists, tuples and dicts.
        num_pieces: number of pieces; they differ by one sample where they can't be equal.
    """
    if num_pieces == 1:
        return [tree]
    size = num_samples(tree)
    leaves, form = tree_flatten(tree)
    columns: list[Sequence[Any]] = [[leaf] * num_pieces for leaf in leaves]
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == size:
            columns[place] = leaf.tensor_split(num_pieces)
    return [tree_unflatten(list(piece), form) for piece in zip(*columns, strict=True)]


def choose(given: int | None, size: int | None, num_stages: int) -> int:
    """The number of microbatches of a batch: what was asked for, or the largest up to twice the
    stages that divides it.

    Args:
        given: what the user asked for; None for `"auto"`.
        size: samples of the batch; None if it has no tensor with samples.
        num_stages: of the pipeline.
    """
    if size is None or size == 0:
        return 1
    if given is not None:
        return min(given, size)
    return next(number for number in range(min(2 * num_stages, size), 0, -1) if size % number == 0)


def join(pieces: Sequence[Any], sizes: Sequence[int | None]) -> Any:
    """Join the results of microbatches, along their first dim.

    Args:
        pieces: of one structure.
        sizes: number of samples of each.

    Raises:
        ModuleError: a result isn't one of samples.
    """
    if len(pieces) == 1:
        return pieces[0]
    flat = [tree_flatten(piece) for piece in pieces]
    joined = [_join(column, sizes) for column in zip(*(leaves for leaves, _ in flat), strict=True)]
    return tree_unflatten(joined, flat[0][1])


def _join(column: Sequence[Any], sizes: Sequence[int | None]) -> Any:
    if not isinstance(column[0], Tensor):
        return column[0]
    if any(not part.ndim or len(part) != size for part, size in zip(column, sizes, strict=True)):
        raise ModuleError(
            f"The model returned a tensor of shape {tuple(column[0].shape)} for a microbatch of "
            f"{sizes[0]} samples: its first dim isn't that of the samples, so that those of "
            "several microbatches can't be put together. Return values by sample, or say "
            "microbatches=1."
        )
    return torch.cat(list(column))
