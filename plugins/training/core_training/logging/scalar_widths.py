"""Logged numbers at their full width: integers are exact, and floats have all their digits."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

_CPU = torch.device("cpu")
_LARGEST = torch.iinfo(torch.int64).max


def to_tensor(value: Any, device: torch.device = _CPU) -> Tensor:
    """A number as a tensor on `device`, of 64 bits where the device has them; a tensor as it is,
    moved there.
    """
    if isinstance(value, Tensor):
        return value.detach().to(device)
    is_exact = isinstance(value, int) and -_LARGEST <= value <= _LARGEST
    return torch.tensor(
        value, dtype=torch.int64 if is_exact else widest_float(device.type), device=device
    )


def widen(value: Tensor, *, is_float: bool = False) -> Tensor:
    """A scalar in the widest format of its kind that its device has: what is summed up there,
    rounds least.

    Args:
        value: one element, in any shape.
        is_float: an integer becomes a float too.
    """
    is_float = is_float or value.is_floating_point()
    wide = value.to(widest_float(value.device.type) if is_float else torch.int64)
    return wide.reshape(()) if wide.dim() else wide


def read(values: Sequence[Any]) -> list[Any]:
    """Numbers, and tensors of one element, as floats; None stays. Waits for a device once, however
    many it has.
    """
    on_device = [value for value in values if _is_on_device(value)]
    if len(on_device) > 1:
        first = on_device[0].device
        found = iter(
            torch.stack(
                [widen(value.detach().to(first), is_float=True) for value in on_device]
            ).tolist()
        )
        values = [next(found) if _is_on_device(value) else value for value in values]
    # Detached: torch warns of a number that is made of a loss.
    values = [value.detach() if isinstance(value, Tensor) else value for value in values]
    return [None if value is None else float(value) for value in values]


def _is_on_device(value: Any) -> bool:
    return type(value) is Tensor and not value.is_cpu


def narrow_for(device: torch.device, value: Tensor) -> Tensor:
    """A widened scalar, moved to a device that may not have its format."""
    return (
        value.to(widest_float(device.type)).to(device)
        if value.is_floating_point()
        else value.to(device)
    )


@cache
def widest_float(device_type: str) -> torch.dtype:
    """float64, or float32 on a device that doesn't have it, such as Apple's."""
    try:
        torch.zeros((), dtype=torch.float64, device=device_type)
    except (TypeError, RuntimeError):
        return torch.float32
    return torch.float64


def add(first: Any, second: Any) -> object:
    """The sum of two numbers, each a tensor or not."""
    first, second = _alike(first, second)
    return first + second


def pick(reduction: str, first: Any, second: Any) -> object:
    """The smaller (`"min"`) or larger of two numbers, each a tensor or not; NaN if one of them
    is.
    """
    first, second = _alike(first, second)
    if isinstance(first, Tensor):
        return torch.minimum(first, second) if reduction == "min" else torch.maximum(first, second)
    is_beyond = second < first if reduction == "min" else second > first
    # NaN alone differs from itself.
    is_nan = second != second
    return second if is_beyond or is_nan else first


def _alike(first: Any, second: Any) -> tuple[object, object]:
    """Two tensors of one device if there is one: a number beside a tensor would narrow it."""
    if isinstance(first, Tensor):
        return first, to_tensor(second, first.device)
    return (
        (to_tensor(first, second.device), second) if isinstance(second, Tensor) else (first, second)
    )


def reduce_weighted(
    value: Any, reduction: str, weight: float | Tensor, reduce_step: Callable[[Any, str], Any]
) -> Tensor:
    """All ranks. The reduction of their values by what their batches weigh; a mean is NaN where
    nothing has weight.
    """
    if reduction == "mean":
        device = (
            weight.device
            if isinstance(weight, torch.Tensor)
            else getattr(value, "device", torch.device("cpu"))
        )
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
