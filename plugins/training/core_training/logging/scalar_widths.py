"""Logged numbers at their full width: integers are exact, and floats have all their digits."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

_LARGEST = torch.iinfo(torch.int64).max


def to_tensor(value: Any, device: torch.device | None = None) -> Tensor:
    """A number as a tensor on `device`, of 64 bits where the device has them; a tensor as it is,
    moved there. Without a device, numbers go to the CPU, and tensors stay.
    """
    if isinstance(value, Tensor):
        tensor = value.detach()
        if device is None:
            return tensor
        return tensor.to(device)
    dtype = torch.int64
    if not isinstance(value, int) or abs(value) > _LARGEST:
        dtype = torch.float64
        if device is not None:
            dtype = widest_float(device.type)
    return torch.tensor(value, dtype=dtype, device=device)


def widen(value: Tensor, *, is_float: bool = False) -> Tensor:
    """A scalar in the widest format of its kind that its device has: what is summed up there,
    rounds least.

    Args:
        value: one element, in any shape.
        is_float: an integer becomes a float too.
    """
    dtype = torch.int64
    if is_float or value.is_floating_point():
        dtype = widest_float(value.device.type)
    wide = value.to(dtype)
    return wide.reshape(())


def read(values: Sequence[Any]) -> list[Any]:
    """Numbers, and tensors of one element, as floats; None stays. Waits for a device once, however
    many it has.
    """
    on_device = [value for value in values if type(value) is Tensor and not value.is_cpu]
    if on_device:
        device = on_device[0].device
        rows = [widen(value.to(device), is_float=True) for value in on_device]
        found = dict(zip(map(id, on_device), torch.stack(rows).tolist(), strict=True))
        values = [found.get(id(value), value) for value in values]
    return [None if value is None else float(value) for value in values]


def narrow_for(device: torch.device, value: Tensor) -> Tensor:
    """A widened scalar, moved to a device that may not have its format."""
    if value.is_floating_point():
        value = value.to(widest_float(device.type))
    return value.to(device)


@cache
def widest_float(device_type: str) -> torch.dtype:
    """float64, or float32 on a device that doesn't have it, such as Apple's."""
    try:
        torch.zeros((), dtype=torch.float64, device=device_type)
    except (TypeError, RuntimeError):
        return torch.float32
    return torch.float64


def on_one_device(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Two widened scalars, the one in memory moved to the device of the other."""
    if first.device == second.device:
        return first, second
    if first.is_cpu:
        return narrow_for(second.device, first), second
    return first, narrow_for(first.device, second)


def reduce_weighted(
    value: Any, reduction: str, weight: float | Tensor, reduce_step: Callable[[Any, str], Any]
) -> Tensor:
    """All ranks. The reduction of their values by what their batches weigh; a mean is NaN where
    nothing has weight.
    """
    if reduction == "mean":
        device = getattr(weight, "device", None) or getattr(value, "device", None)
        own = widen(to_tensor(weight, device), is_float=True)
        part = torch.where(own == 0, 0.0, widen(to_tensor(value, device), is_float=True) * own)
        return reduce_step(part, "sum") / reduce_step(own, "sum")  # type: ignore[no-any-return]
    if weight == 0:
        value = widen(to_tensor(value))
        value = torch.full_like(value, _neutral(reduction, value))
    return reduce_step(value, reduction)  # type: ignore[no-any-return]


def _neutral(reduction: str, like: Tensor) -> float:
    """The value that changes nothing."""
    least, most = -math.inf, math.inf
    if not like.is_floating_point():
        limits = torch.iinfo(like.dtype)
        least, most = limits.min, limits.max
    return {"sum": 0, "min": most, "max": least}[reduction]
