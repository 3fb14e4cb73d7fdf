"""What a model returns by position, of which each rank keeps its own part of the sequence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from core import ModuleError
from core_parallel.communication import collectives
from core_parallel.context import losses

if TYPE_CHECKING:
    from collections.abc import Callable

_GETTERS = frozenset(
    getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "layout", "is_meta", "is_cuda", "is_sparse", "is_nested")
) | {
    getattr(Tensor, name)
    for name in ("size", "dim", "numel", "nelement", "is_floating_point", "is_complex", "__len__", "element_size")
}
_OF_PART = frozenset(getattr(Tensor, name).__get__ for name in ("requires_grad", "grad_fn", "is_leaf"))
_NAMES = (
    *("float", "double", "half", "bfloat16", "to", "type", "contiguous", "clone", "detach", "neg", "__neg__"),
    *("mul", "__mul__", "__rmul__", "div", "__truediv__", "true_divide", "add", "__add__", "__radd__"),
    *("sub", "__sub__", "tanh"),
)
_BY_ELEMENT = frozenset(
    getattr(owner, name) for owner in (Tensor, torch) for name in _NAMES if callable(getattr(owner, name, None))
) - {torch.half, torch.float}
_ALONG_CLASSES = frozenset(
    (torch.log_softmax, Tensor.log_softmax, functional.log_softmax, torch.softmax, Tensor.softmax, functional.softmax)
)
_LARGEST = frozenset((torch.argmax, Tensor.argmax))


@dataclass(frozen=True)
class Span:
    """Which positions a rank has.

    Attributes:
        dim: of the values, which is the sequence; with `num_samples`, samples and positions as one.
        start: the first position.
        length: the number of positions of all ranks.
        num_samples: in the same dim, 1 if they have one of their own.
    """

    dim: int
    start: int
    length: int
    num_samples: int = 1

    def of(self, whole: Tensor, dim: int, number: int) -> Tensor:
        """This rank's positions of a whole tensor.

        Args:
            whole: of all positions.
            dim: its dim that is the sequence.
            number: of positions of this rank.
        """
        apart = whole.unflatten(dim, (self.num_samples, self.length))
        own: Tensor = apart.narrow(dim + 1, self.start, number).flatten(dim, dim + 1)
        return own


class SequencePart(Tensor):
    """The values of a whole sequence, of which this rank has its own positions.

    It has the shape of the whole. Functions that work position by position, slices of positions, and cross entropy do
    as with the whole; others are an error. A rank never has the values of others, unless all call `whole`.
    """

    _part: Tensor
    _span: Span
    _group: Any

    @staticmethod
    def __new__(cls, part: Tensor, span: Span, group: Any) -> SequencePart:
        """Make one.

        Args:
            part: the values of this rank's positions, with a graph.
            span: which these are.
            group: of the ranks.
        """
        shape = list(part.shape)
        shape[span.dim] = span.num_samples * span.length
        made: SequencePart = Tensor._make_wrapper_subclass(cls, shape, dtype=part.dtype, device=part.device)
        made._part, made._span, made._group = part, span, group
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's is untyped
        """Say what it is."""
        return f"SequencePart(shape={tuple(self.shape)}, of which this rank has {tuple(self._part.shape)})"

    def local(self) -> Tensor:
        """The values of this rank's positions."""
        return self._part

    def whole(self) -> Tensor:
        """All ranks of the group. The values of all positions, on each rank."""
        span, dim = self._span, self._span.dim
        apart = self._part.unflatten(dim, (span.num_samples, -1))
        after = span.length - span.start - apart.shape[dim + 1]
        padded = functional.pad(apart, (*[0, 0] * (apart.ndim - dim - 2), span.start, after))
        return collectives.add_up(padded.flatten(dim, dim + 1), self._group)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's result."""
        kwargs = kwargs or {}
        own = next((one for one in args if isinstance(one, cls)), None)
        if func in _GETTERS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in losses.BY_POSITION:
            return _loss(func, losses.bound(func, args, kwargs))
        if own is None:
            raise _refused(func)
        return own._computed(func, args, kwargs)

    def _computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        others = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor) and one is not self]
        if args[0] is not self and func not in _BY_ELEMENT:
            raise _refused(func)
        if func in _OF_PART:
            return func(self._part)
        if func in _BY_ELEMENT and all(one.numel() == 1 for one in others if not isinstance(one, SequencePart)):
            if any(isinstance(one, SequencePart) for one in others):
                raise _refused(func)
            return self._with(func(*(self._part if one is self else one for one in args), **kwargs), self._span)
        if func in _ALONG_CLASSES or func in _LARGEST:
            return self._along_classes(func, args, kwargs)
        if (move := _MOVES.get(func)) is not None:
            return move(self, *args[1:], **kwargs)
        raise _refused(func)

    def _with(self, part: Tensor, span: Span) -> SequencePart:
        return SequencePart(part, span, self._group)

    def _along_classes(self, func: Any, args: Any, kwargs: Any) -> Any:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if not isinstance(dim, int) or dim % self.ndim == self._span.dim or kwargs.get("keepdim"):
            raise _refused(func)
        result = func(self._part, *args[1:], **kwargs)
        if func in _ALONG_CLASSES:
            return self._with(result, self._span)
        shifted = replace(self._span, dim=self._span.dim - (dim % self.ndim < self._span.dim))
        return self._with(result, shifted).whole()  # a number for each position

    def _sliced(self, index: Any) -> SequencePart:
        places = list(index) if isinstance(index, tuple) else [index]
        if places.count(Ellipsis) == 1:
            at = places.index(Ellipsis)
            places[at : at + 1] = [slice(None)] * (self.ndim - len(places) + 1)
        span, dim = self._span, self._span.dim
        if not all(isinstance(one, slice) for one in places) or any(one.step not in (None, 1) for one in places):
            raise _refused(Tensor.__getitem__)
        if dim >= len(places) or places[dim] == slice(None):
            return self._with(self._part[tuple(places)], span)
        if span.num_samples > 1:
            raise _refused(Tensor.__getitem__)
        start, stop, _ = places[dim].indices(span.length)
        own = self._part.shape[dim]
        first, last = (min(max(one - span.start, 0), own) for one in (start, stop))
        places[dim] = slice(first, max(first, last))
        length = max(stop - start, 0)
        begin = min(max(span.start - start, 0), length)
        return self._with(self._part[tuple(places)], replace(span, start=begin, length=length))

    def _flattened(self, start_dim: int = 0, end_dim: int = -1) -> SequencePart:
        shape, first, last = list(self.shape), start_dim % self.ndim, end_dim % self.ndim
        merged = 1
        for size in shape[first : last + 1]:
            merged *= size
        return self._viewed([*shape[:first], merged, *shape[last + 1 :]])

    def _viewed(self, *shape: Any) -> SequencePart:
        sizes = list(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        own = list(self.shape)
        if -1 in sizes:
            known = 1
            for one in sizes:
                known *= one if one != -1 else 1
            sizes[sizes.index(-1)] = self.numel() // max(known, 1)
        if sizes == own:
            return self
        if self._span.dim != 1 or sizes != [own[0] * own[1], *own[2:]]:
            raise _refused(Tensor.view)
        return self._with(self._part.flatten(0, 1), replace(self._span, dim=0, num_samples=own[0]))

    def _transposed(self, dim0: int, dim1: int) -> SequencePart:
        one, other, dim = dim0 % self.ndim, dim1 % self.ndim, self._span.dim
        moved = {one: other, other: one}.get(dim, dim)
        return self._with(self._part.transpose(one, other), replace(self._span, dim=moved))

    def _permuted(self, *dims: Any) -> SequencePart:
        order = [one % self.ndim for one in (dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)]
        return self._with(self._part.permute(order), replace(self._span, dim=order.index(self._span.dim)))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # torch's takes what is called by name
        """Refuse what comes around `__torch_function__`."""
        raise _refused(func)


_MOVES: dict[Callable[..., Any], Callable[..., SequencePart]] = {
    Tensor.__getitem__: SequencePart._sliced,
    Tensor.flatten: SequencePart._flattened,
    torch.flatten: SequencePart._flattened,
    Tensor.view: SequencePart._viewed,
    Tensor.reshape: SequencePart._viewed,
    torch.reshape: SequencePart._viewed,
    Tensor.transpose: SequencePart._transposed,
    torch.transpose: SequencePart._transposed,
    Tensor.permute: SequencePart._permuted,
    torch.permute: SequencePart._permuted,
}


def _loss(loss: Callable[..., Any], given: dict[str, Any]) -> Tensor:
    """All ranks of the group. The loss of the whole sequence, of which the target is whole on all ranks."""
    values, target = given["input"], given["target"]
    if not isinstance(values, SequencePart) or isinstance(target, SequencePart):
        raise _refused(loss)
    span, part = values._span, values._part
    classes = -1 if loss is losses.LINEAR_CROSS_ENTROPY or values.ndim == 1 else min(1, values.ndim - 1)
    classes %= values.ndim
    if span.dim == classes or given.get("reduction") == "none":
        raise _refused(loss)
    dim = span.dim if target.ndim == values.ndim else span.dim - (classes < span.dim)
    expected = span.num_samples * span.length
    if dim >= target.ndim or target.shape[dim] != expected:
        raise ModuleError(
            f"{loss.__name__} of values for {expected} positions got a target of shape {tuple(target.shape)}. It must "
            "be of the whole sequence."
        )
    number = part.shape[span.dim] // span.num_samples
    own = {**given, "input": part, "target": span.of(target, dim, number)}
    return losses.of_all(loss, own, values._group)


def _refused(func: Any) -> ModuleError:
    name = getattr(func, "__name__", str(func))
    return ModuleError(
        f"{name} of what the model returned: with context_loss='local' each rank has its own positions of it alone. "
        "Functions by position, slices of positions, views as (samples * length, classes) and cross entropy are done "
        "in parts. Call .whole() first, on all ranks, to have all positions; or leave context_loss out."
    )
