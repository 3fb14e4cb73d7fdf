"""Losses of a part of the sequence, summed over the group: each is the loss of the whole
sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from core_parallel.communication import collectives
from core_parallel.following import exchanges
from core_parallel.modules.losses import IGNORED
from core_parallel.modules.parted_tensor import local_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_HALVES = (torch.float16, torch.bfloat16)


def of_all(loss: Callable[..., Any], given: Mapping[str, Any], group: Any) -> Tensor:
    """All ranks of the group. The loss of the positions of all ranks; of its own ones with
    `reduction="none"`.

    Args:
        loss: one of `BY_POSITION`.
        given: its arguments for this rank's positions.
        group: of the ranks.
    """
    reduction = given.get("reduction", "mean")
    if reduction == "none":
        return _own(loss, given, group)
    summed, dtype = _summed(loss, given, group)
    total = collectives.add_up(summed, group)
    if reduction == "mean":
        total = total / collectives.add_up(_number(given), group)
    return total.to(dtype)


def _own(loss: Callable[..., Any], given: Mapping[str, Any], group: Any) -> Tensor:
    """The loss of this rank's positions."""
    found: Tensor = loss(**given)
    exchanges.lost(
        found, local_of(given["input"]), given["target"], given.get("reduction", "mean"), group
    )
    return found


def _summed(
    loss: Callable[..., Any], given: Mapping[str, Any], group: Any
) -> tuple[Tensor, torch.dtype]:
    """The sum over this rank's positions, which in 16 bits might overflow, and the dtype of the
    loss.
    """
    if given["input"].dtype in _HALVES:
        apart = _own(loss, {**given, "reduction": "none"}, group)
        return apart.sum(dtype=torch.float32), apart.dtype
    found = _own(loss, {**given, "reduction": "sum"}, group)
    return found, found.dtype


def _number(given: Mapping[str, Any]) -> Tensor:
    """The number by which the mean divides: of positions that aren't ignored, or their classes'
    weights.
    """
    values: Tensor = given["input"]
    target: Tensor = given["target"]
    weight: Tensor | None = given.get("weight")
    dtype = torch.promote_types(values.dtype, torch.float32)
    if target.is_floating_point():  # probabilities of classes
        return torch.ones_like(target.select(min(1, target.ndim - 1), 0), dtype=dtype).sum()
    ignored = given.get("ignore_index")
    if ignored is None:
        ignored = IGNORED
    counted = target != ignored
    if weight is None:
        return counted.sum().to(dtype)
    return weight[target.where(counted, 0)].where(counted, 0.0).sum().to(dtype)
