"""Sizes of a tensor's part as numbers that say so: what is counted or divided by one of them isn't
what one device has.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from core import ModuleError
from core.contract import refuse
from core_parallel.following.marks import PartAlong, mark_of
from core_parallel.modules.graphs import nodes_behind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Ratio(float):
    """A number that was computed from a `Length`, along the same axis."""

    axis = ""


class Length(int):
    """A size of a part, or a whole number that was computed from one.

    Attributes:
        axis: along which it is a part.
    """

    axis = ""

    def __int__(self) -> int:
        """A plain number, which is noted."""
        found = int.__int__(self)
        self._note(found)
        return found

    def __float__(self) -> float:
        """A plain number, such as one of which a root is taken. That is noted as well, unless it is
        a number that may be meant otherwise.
        """
        found = int.__float__(self)
        self._note(found)
        if found > 0 and not (found**0.5).is_integer():
            self._note(found**0.5, found**-0.5)
        return found

    def _note(self, *numbers: float) -> None:
        noted(self.axis).update(one for one in numbers if not 1 <= one <= _FEW)


_FEW = 2
"""Numbers up to it stand in programs for other reasons."""
_numbers = threading.local()


def noted(axis: str) -> set[float]:
    """Plain numbers that were made of sizes of parts along an axis, in this thread."""
    found: set[float] = vars(_numbers).setdefault(axis, set())
    return found


_NUMBERS, _PLAIN = frozenset((Length, Ratio)), frozenset((int, float))


def _kept(name: str) -> Callable[..., Any]:
    own = getattr(int, name)

    def operation(self: Length, *others: Any) -> Any:
        found = own(self, *others)
        if found is NotImplemented and isinstance(others[0], float):
            found = getattr(float, name)(int.__float__(self), others[0])
        return _along_axis(found, self.axis)

    return operation


def _along_axis(found: Any, axis: str) -> Any:
    """A number that says of which axis it is; anything else as it is."""
    if isinstance(found, int | float):
        found = Ratio(found) if isinstance(found, float) else Length(found)
        found.axis = axis
    return found


for _name in ("add", "sub", "mul", "floordiv", "mod", "pow", "truediv"):
    for _side in ("", "r"):
        setattr(Length, f"__{_side}{_name}__", _kept(f"__{_side}{_name}__"))

_SHAPE = Tensor.shape.__get__  # type: ignore[attr-defined]  # a descriptor
_COUNTS = frozenset((Tensor.numel, Tensor.nelement))
READS = _COUNTS | {_SHAPE, Tensor.size}
"""Functions that read sizes of a tensor."""

_OPERATIONS = ("add", "sub", "mul", "div", "truediv", "pow")
_VALUES = {f"{side}{name}" for name in _OPERATIONS for side in ("", "r", "i")} | {"true_divide"}


def of(axis: str, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """The result of a function of a tensor's sizes, with `Length` where it is of a part."""
    mark = mark_of(args[0], axis) if func in READS else None
    if not isinstance(mark, PartAlong):
        return result
    return _along(mark.dim, func, args, kwargs, result, axis)


def _along(part: int, func: Any, args: Any, kwargs: Any, result: Any, axis: str = "") -> Any:
    if not isinstance(result, int):
        return torch.Size(
            _along_axis(one, axis) if dim == part else one for dim, one in enumerate(result)
        )
    if func not in _COUNTS and [*args[1:], *kwargs.values()][0] % args[0].ndim != part:
        return result
    return _along_axis(result, axis)


class SizesOfSamples(TorchFunctionMode):
    """A context in which sizes of tensors with so many samples are `Length`."""

    def __init__(self, num_samples: int | None) -> None:
        super().__init__()
        self._num_samples = num_samples

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's result."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func not in READS or not args[0].ndim or len(args[0]) != self._num_samples:
            return result
        return _along(0, func, args, kwargs, result)


def refuse_in(node: Any, why: str) -> None:
    """Refuse a node of a graph whose Function has kept a `Length` for its backward."""
    if isinstance(node, BackwardCFunction):
        for name, value in vars(node).items():
            if isinstance(value, Length | Ratio):
                text = (
                    f"{type(node).__name__.removesuffix('Backward')} keeps in ctx.{name} a size of "
                    f"what it is given, {why}: its backward would compute with another number on "
                    "one device. Give the Function that number as an argument of the model."
                )
                refuse(ModuleError(text))


def refuse_in_graph(results: Iterable[Any], why: str) -> None:
    """The same for all nodes behind some results."""
    for node in nodes_behind(results):
        refuse_in(node, why)


def has_one(args: Iterable[Any], axis: str) -> bool:
    """True if an argument was computed from a size of a part along an axis."""
    known = noted(axis)
    return any(
        one.axis == axis if type(one) in _NUMBERS else type(one) in _PLAIN and one in known
        for one in args
    )


def takes_one(func: Any, args: Any, axis: str) -> bool:
    """True if a function computes with a `Length`, and not of that size."""
    return getattr(func, "__name__", "").strip("_") in _VALUES and has_one(args, axis)
