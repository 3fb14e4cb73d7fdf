"""One step's value of a name, over ranks that have different numbers of samples in it, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core.trainer.logging.scalar_widths import to_tensor, widen

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from core.data import MicroBatch


def weigh(value: Any, reduction: str, micro_batch: MicroBatch) -> Any:
    """This rank's part of the value, so that the reduction over ranks is that over all samples of the step."""
    if micro_batch.weight:
        return value * micro_batch.weight_in_step if reduction == "mean" else value
    part = widen(value if isinstance(value, torch.Tensor) else to_tensor(value), is_float=reduction == "mean")
    return torch.full_like(part, _neutral(reduction, part))


def mean_by_weights(value: Any, weight: float | Tensor, sum_over_ranks: Callable[[Any, str], Any]) -> Tensor:
    """All ranks. The mean of their values by the weights that their steps gave; NaN where there is none."""
    own = widen(to_tensor(weight), is_float=True)
    part = torch.where(own == 0, 0.0, widen(to_tensor(value, own.device), is_float=True) * own)
    total: Tensor = sum_over_ranks(part, "sum") / sum_over_ranks(own, "sum")
    return total


def _neutral(reduction: str, like: Tensor) -> float:
    """The value that changes nothing."""
    if reduction in ("mean", "sum"):
        return 0
    limits = torch.finfo(like.dtype) if like.is_floating_point() else torch.iinfo(like.dtype)
    if like.is_floating_point():
        return float("inf") if reduction == "min" else float("-inf")
    return limits.max if reduction == "min" else limits.min
