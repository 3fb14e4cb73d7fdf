"""Values of which each rank of a group keeps a part, and which a step uses as if they were
whole.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from core import ModuleError
from core_parallel.modules import losses

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

_OF_SHAPE = frozenset(
    {
        "shape",
        "dtype",
        "device",
        "ndim",
        "layout",
        "is_meta",
        "is_cuda",
        "is_sparse",
        "is_nested",
        "size",
        "dim",
        "numel",
        "nelement",
        "is_floating_point",
        "is_complex",
        "__len__",
        "element_size",
    }
)
_OF_PART = frozenset({"requires_grad", "grad_fn", "is_leaf"})
_BY_ELEMENT = frozenset(
    {
        "float",
        "double",
        "half",
        "bfloat16",
        "to",
        "type",
        "contiguous",
        "clone",
        "detach",
        "neg",
        "__neg__",
        "mul",
        "__mul__",
        "__rmul__",
        "div",
        "__truediv__",
        "true_divide",
        "add",
        "__add__",
        "__radd__",
        "sub",
        "__sub__",
        "tanh",
    }
)
_MOVES = {
    "__getitem__": "_sliced",
    "flatten": "_flattened",
    "view": "_viewed",
    "reshape": "_viewed",
    "transpose": "_transposed",
    "permute": "_permuted",
    "log_softmax": "_log_softmax",
    "softmax": "_softmax",
    "argmax": "_argmax",
}


class PartedTensor(Tensor):
    """A tensor in the shape of the whole, of which this rank has a part.

    What is done element by element is done with the part; views, slices and losses as the kind of
    part knows how, and all else is an error. A rank never has the values of others, unless all call
    `whole`.
    """

    option: ClassVar[str]
    """The strategy's option that leaves values in parts, for messages."""
    uses: ClassVar[str]
    """Which uses there are, for messages."""
    _part: Tensor
    _group: Any

    @classmethod
    def _make(cls, part: Tensor, shape: Sequence[int], group: Any) -> Self:
        made: Self = Tensor._make_wrapper_subclass(cls, shape, dtype=part.dtype, device=part.device)
        made._part, made._group = part, group
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's is untyped
        """A line about both shapes."""
        return (
            f"{type(self).__name__}(shape={tuple(self.shape)}, of which this rank has "
            f"{tuple(self._part.shape)})"
        )

    def local(self) -> Tensor:
        """The values that this rank has."""
        return self._part

    def whole(self) -> Tensor:
        """All ranks of the group. All values, on each rank."""
        raise NotImplementedError

    def returned(self) -> Tensor:
        """All ranks of the group. The tensor that the model's call gives to the step: this one."""
        return self

    def _like(self, part: Tensor) -> Self:
        """Other values, element by element, in the place of these."""
        raise NotImplementedError

    def _lose(self, loss: Any, given: dict[str, Any]) -> Tensor:
        """All ranks of the group. A loss by position of these values, and a whole target."""
        raise NotImplementedError

    def _viewed(self, *shape: Any) -> Self:
        raise refused(self, Tensor.view)

    def _flattened(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        shape, first, last = list(self.shape), start_dim % self.ndim, end_dim % self.ndim
        return self._viewed(*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])

    def _sizes(self, shape: Any) -> list[int]:
        """The shape that a view asks for."""
        sizes = _listed(shape)
        if -1 in sizes:
            known = math.prod(one for one in sizes if one != -1)
            sizes[sizes.index(-1)] = self.numel() // max(known, 1)
        return sizes

    def _places(self, index: Any) -> list[slice]:
        """An index as slices of all dims that it names; others are refused."""
        places = [index]
        if isinstance(index, tuple):
            places = [*index]
        for at, one in enumerate(places):
            if one is Ellipsis:
                places[at : at + 1] = [slice(None)] * (self.ndim - len(places) + 1)
                break
        if not all(isinstance(one, slice) and one.step in (None, 1) for one in places):
            raise refused(self, Tensor.__getitem__)
        return places

    def _order(self, dims: Any) -> list[int]:
        """The dims that a permutation names."""
        return [one % self.ndim for one in _listed(dims)]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's result."""
        kwargs, name = kwargs or {}, func.__name__
        if name == "__get__":  # of an attribute
            name = func.__self__.__name__
        if name in _OF_SHAPE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        given = [*args, *kwargs.values()]
        parts = [one for one in given if isinstance(one, PartedTensor)]
        if len(parts) != 1:
            raise refused(cls, func)
        own = parts[0]
        if func in losses.BY_POSITION:
            of_loss = losses.bound(func, args, kwargs)
            if of_loss["input"] is own:
                return own._lose(func, of_loss)
        elif name in _OF_PART:
            return func(own._part)
        elif name in _BY_ELEMENT:
            others = [one for one in given if isinstance(one, Tensor) and one is not own]
            if all(one.numel() == 1 for one in others):
                return own._like(
                    func(*(own._part if one is own else one for one in args), **kwargs)
                )
        elif args[0] is own and hasattr(own, _MOVES.get(name, "")):
            return getattr(own, _MOVES[name])(*args[1:], **kwargs)
        raise refused(cls, func)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # torch's takes what is called by name
        """Refuse what comes around `__torch_function__`."""
        raise refused(cls, func)


def _listed(numbers: Any) -> list[int]:
    """Numbers that are given one by one, or in a list."""
    if len(numbers) == 1 and not isinstance(numbers[0], int):
        (numbers,) = numbers
    return [*numbers]


def refused(kind: PartedTensor | type[PartedTensor], func: Any) -> ModuleError:
    """The error of a use that there isn't."""
    name = getattr(func, "__name__", str(func))
    return ModuleError(
        f"{name} of what the model returned: with {kind.option} each rank has its own part of it "
        f"alone. {kind.uses} and cross entropy are done in parts. Call .whole() first, on all "
        "ranks, to have all values; or leave the option out."
    )


def local_of(value: Any) -> Any:
    """The values that this rank has, of one that may lie in parts along several axes."""
    while isinstance(value, PartedTensor):
        value = value.local()
    return value
