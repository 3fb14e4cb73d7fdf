"""Masks of attention, of which a rank needs the rows or the heads that it computes.

The last two dims of a mask are queries and keys. Those of queries are the whole sequence, this
rank's part of it, or one, which holds for all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from core import ModuleError
from core_parallel.communication import collectives


def of_whole_keys(mask: Tensor, length: int, group: Any) -> Tensor:
    """All ranks of the group. The mask for the keys of all ranks.

    Args:
        mask: (..., queries, keys).
        length: of this rank's part of the sequence.
        group: of the ranks.

    Raises:
        ModuleError: it says nothing about keys of other ranks.
    """
    mask, whole = torch.atleast_2d(mask), length * group.size()
    queries, keys = mask.shape[-2:]
    if length > 1 and (queries, keys) == (1, length):
        return collectives.gather(mask, -1, group)
    if length == 1 or keys not in (1, whole) or queries not in (1, length, whole):
        raise ModuleError(
            f"scaled_dot_product_attention was called with a mask of shape {tuple(mask.shape)}, "
            f"which was made of this rank's {length} of {whole} positions under context=. Give the "
            f"model a mask of the whole sequence as an argument, (..., {whole}, {whole}) or "
            f"(samples, {whole}) for keys; or use is_causal=True, or no mask."
        )
    return mask


def of_own_heads(mask: Tensor, num_heads: int, length: int, group: Any) -> Tensor:
    """All ranks of the group. The mask for the queries of all ranks, and the heads of this one."""
    has_heads = mask.ndim > 2 and mask.shape[-3] == num_heads
    if mask.shape[-2] == length:
        return (
            collectives.swap(mask, -3, -2, group)
            if has_heads
            else collectives.gather(mask, -2, group)
        )
    return mask.chunk(group.size(), -3)[group.rank()] if has_heads else mask


def of_own_rows(mask: Tensor, length: int, group: Any) -> Tensor:
    """The mask for the queries of this rank, and all heads."""
    return mask if mask.shape[-2] in (1, length) else mask.narrow(-2, length * group.rank(), length)


def is_one(leaf: Tensor, length: int, num_samples: int) -> bool:
    """True if an argument of a model is a mask between positions, which isn't cut: (length,
    length), or with heads.

    Where there are as many samples as positions, it may as well be values by position.
    """
    between = leaf.shape[-2:] == (length, length)
    return between and (leaf.ndim > 3 or (leaf.ndim == 2 and num_samples != length))
