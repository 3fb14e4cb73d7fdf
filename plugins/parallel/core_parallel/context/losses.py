"""Losses of a part of the sequence, summed over the group: each is the loss of the whole sequence."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.nn._reduction import legacy_get_string

from core_parallel.communication import collectives

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CROSS_ENTROPY = functional.cross_entropy
LINEAR_CROSS_ENTROPY = getattr(functional, "linear_cross_entropy", CROSS_ENTROPY)  # torch has it since 2.13
BY_POSITION: frozenset[Callable[..., Any]] = frozenset((CROSS_ENTROPY, LINEAR_CROSS_ENTROPY, functional.nll_loss))
"""The functions whose loss is the sum, or the mean, of one number for each position that isn't ignored."""

_IGNORED = -100
_HALVES = (torch.float16, torch.bfloat16)


def bound(loss: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a loss by their names."""
    given = dict(signature(loss).bind(*args, **kwargs).arguments)
    earlier = given.pop("size_average", None), given.pop("reduce", None)
    return given if earlier == (None, None) else {**given, "reduction": legacy_get_string(*earlier)}


def of_all(loss: Callable[..., Any], given: Mapping[str, Any], group: Any) -> Tensor:
    """All ranks of the group. The loss of the positions of all ranks; of its own ones with `reduction="none"`.

    Gradients are `size` times a rank's part, as those of all that is computed in parts.

    Args:
        loss: one of `BY_POSITION`.
        given: its arguments for this rank's positions.
        group: of the ranks.
    """
    reduction = given.get("reduction", "mean")
    if reduction == "none":
        own: Tensor = loss(**given)
        return own
    total = collectives.add_up(_summed(loss, given), group)
    if reduction == "mean":
        number = _number(loss, given)
        dist.all_reduce(number, group=group)
        total = total / number
    result: Tensor = total.to(given["input"].dtype)
    return result


def _summed(loss: Callable[..., Any], given: Mapping[str, Any]) -> Tensor:
    """The sum over this rank's positions, which in 16 bits might overflow."""
    if given["input"].dtype in _HALVES:
        return loss(**{**given, "reduction": "none"}).sum(dtype=torch.float32)  # type: ignore[no-any-return]
    return loss(**{**given, "reduction": "sum"})  # type: ignore[no-any-return]


def _number(loss: Callable[..., Any], given: Mapping[str, Any]) -> Tensor:
    """The number by which the mean divides: of positions that aren't ignored, or their classes' weights."""
    values: Tensor = given["input"]
    target: Tensor = given["target"]
    weight: Tensor | None = given.get("weight")
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    if target.is_floating_point():  # probabilities of classes
        number_of_classes = target.shape[1 if target.ndim > 1 else 0]
        return torch.tensor(target.numel() / number_of_classes, dtype=dtype, device=values.device)
    ignored = given.get("ignore_index")
    counted = target != (_IGNORED if ignored is None else ignored)
    if weight is None:
        return counted.sum().to(dtype)
    return weight[target[counted]].sum().to(dtype)
