"""Sizes of a tensor's part as numbers that say so: what is counted or divided by one of them isn't
what one device has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from core_parallel.following.marks import PartAlong, mark_of

if TYPE_CHECKING:
    from collections.abc import Callable


class Ratio(float):
    """A number that was computed from a `Length`."""


class Length(int):
    """A size of a part, or a whole number that was computed from one."""


def _kept(name: str) -> Callable[..., Any]:
    own = getattr(int, name)

    def operation(self: Length, *others: Any) -> Any:
        found = own(self, *others)
        if found is NotImplemented and isinstance(others[0], float):
            found = getattr(float, name)(float(self), others[0])
        return Ratio(found) if isinstance(found, float) else _length(found)

    return operation


def _length(found: Any) -> Any:
    if isinstance(found, int):
        return Length(found)
    return found


for _name in ("add", "sub", "mul", "floordiv", "mod", "pow", "truediv"):
    for _side in ("", "r"):
        setattr(Length, f"__{_side}{_name}__", _kept(f"__{_side}{_name}__"))

_SHAPE = Tensor.shape.__get__  # type: ignore[attr-defined]  # a descriptor
_COUNTS = (Tensor.numel, Tensor.nelement)
_OPERATIONS = ("add", "sub", "mul", "div", "truediv", "pow")
_VALUES = {f"{side}{name}" for name in _OPERATIONS for side in ("", "r", "i")} | {"true_divide"}


def of(axis: str, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """The result of a function of a tensor's sizes, with `Length` where it is of a part."""
    if func != _SHAPE and func is not Tensor.size and func not in _COUNTS:
        return result
    mark = mark_of(args[0], axis)
    if not isinstance(mark, PartAlong):
        return result
    if not isinstance(result, int):
        return torch.Size(Length(one) if dim == mark.dim else one for dim, one in enumerate(result))
    if func not in _COUNTS and [*args[1:], *kwargs.values()][0] % args[0].ndim != mark.dim:
        return result
    return Length(result)


def takes_one(func: Any, args: Any) -> bool:
    """True if a function computes with a `Length`, and not of that size."""
    return getattr(func, "__name__", "").strip("_") in _VALUES and any(
        isinstance(one, Length | Ratio) for one in args
    )
