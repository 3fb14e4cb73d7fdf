"""One step's value of a name, over ranks that have different numbers of samples in it, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core.trainer.logging.scalar_widths import to_tensor, widen

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def reduce_weighted(
    value: Any, reduction: str, weight: float | Tensor, reduce_step: Callable[[Any, str], Any]
) -> Tensor:
    """All ranks. The reduction of their values by what their batches weigh; a mean is NaN where nothing has weight."""
    if reduction == "mean":
        device = weight.device if isinstance(weight, torch.Tensor) else getattr(value, "device", torch.device("cpu"))
        own = widen(to_tensor(weight, device), is_float=True)
        part = torch.where(own == 0, 0.0, widen(to_tensor(value, device), is_float=True) * own)
        return reduce_step(part, "sum") / reduce_step(own, "sum")  # type: ignore[no-any-return]
    if weight == 0:
        value = widen(to_tensor(value, getattr(value, "device", torch.device("cpu"))))
        value = torch.full_like(value, _neutral(reduction, value))
    return reduce_step(value, reduction)  # type: ignore[no-any-return]


def _neutral(reduction: str, like: Tensor) -> float:
    """The value that changes nothing."""
    if reduction == "sum":
        return 0
    limits = torch.finfo(like.dtype) if like.is_floating_point() else torch.iinfo(like.dtype)
    if like.is_floating_point():
        return float("inf") if reduction == "min" else float("-inf")
    return limits.max if reduction == "min" else limits.min
