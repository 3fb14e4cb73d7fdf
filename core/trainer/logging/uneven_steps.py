"""One step's value of a name, over ranks that have different numbers of samples in it, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core.trainer.logging.scalar_widths import to_tensor, widen

if TYPE_CHECKING:
    from torch import Tensor

    from core.data import MicroBatch


def weigh(value: Any, reduction: str, micro_batch: MicroBatch) -> Any:
    """This rank's part of the value, so that the reduction over ranks is that over all samples of the step."""
    if micro_batch.weight:
        return value * micro_batch.weight_in_step if reduction == "mean" else value
    part = widen(value if isinstance(value, torch.Tensor) else to_tensor(value), is_float=reduction == "mean")
    return torch.full_like(part, _neutral(reduction, part))


def _neutral(reduction: str, like: Tensor) -> float:
    """The value that changes nothing."""
    if reduction in ("mean", "sum"):
        return 0
    limits = torch.finfo(like.dtype) if like.is_floating_point() else torch.iinfo(like.dtype)
    if like.is_floating_point():
        return float("inf") if reduction == "min" else float("-inf")
    return limits.max if reduction == "min" else limits.min
