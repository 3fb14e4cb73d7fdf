"""Losses of a part of the sequence, summed over the group: each is the loss of the whole
sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from core_parallel.communication import collectives
from core_parallel.modules.losses import IGNORED

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
        own: Tensor = loss(**given)
        return own
    summed, dtype = _summed(loss, given)
    total = collectives.add_up(summed, group)
    if reduction == "mean":
        number = _number(loss, given)
        dist.all_reduce(number, group=group)
        total = total / number
    return total.to(dtype)


def _summed(loss: Callable[..., Any], given: Mapping[str, Any]) -> tuple[Tensor, torch.dtype]:
    """The sum over this rank's positions, which in 16 bits might overflow, and the dtype of the
    loss.
    """
    is_half = given["input"].dtype in _HALVES
    found: Tensor = loss(**{**given, "reduction": "none" if is_half else "sum"})
    return found.sum(dtype=torch.float32) if is_half else found, found.dtype


def _number(loss: Callable[..., Any], given: Mapping[str, Any]) -> Tensor:
    """The number by which the mean divides: of positions that aren't ignored, or their classes'
    weights.
    """
    values: Tensor = given["input"]
    target: Tensor = given["target"]
    weight: Tensor | None = given.get("weight")
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    if target.is_floating_point():  # probabilities of classes
        number_of_classes = target.shape[1 if target.ndim > 1 else 0]
        return torch.tensor(target.numel() / number_of_classes, dtype=dtype, device=values.device)
    ignored = given.get("ignore_index")
    counted = target != (IGNORED if ignored is None else ignored)
    if weight is None:
        return counted.sum().to(dtype)
    return weight[target[counted]].sum().to(dtype)
