"""Results of operations on shapes alone, of which torch's own computing takes most of a
rehearsal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch._subclasses.fake_tensor import FakeTensorMode

_Made = tuple[torch.Size, tuple[int, ...], torch.dtype, int | None]
"""Shape, strides and dtype of a result; the offset in the first tensor's storage, or None where it
has its own.
"""

_UNKNOWN = object()
_CHANGING = (
    torch.Tag.inplace_view,
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
)
_CPU = torch.device("cpu")


class KnownShapes:
    """Calls operations, each once for the same shapes, strides, dtypes and other arguments."""

    def __init__(self, fake: FakeTensorMode) -> None:
        """Nothing is known.

        Args:
            fake: the mode of all tensors that it makes.
        """
        self._fake = fake
        self._known: dict[Any, Any] = {}

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of `func`: of aten, and with tensors without memory only, from what is
        known.
        """
        tensors: list[FakeTensor] = []
        key: list[Any] = [func]
        if func.namespace != "aten" or not self._describe(args, key, tensors):
            return func(*args, **kwargs)
        if kwargs and not (
            self._describe(kwargs, key, tensors) and self._describe(kwargs.values(), key, tensors)
        ):
            return func(*args, **kwargs)
        of_call = tuple(key)
        known = self._known.get(of_call, _UNKNOWN)
        if known is _UNKNOWN:
            result = func(*args, **kwargs)
            self._known[of_call] = self._learnt(func, tensors, result)
            return result
        if known is None:
            return func(*args, **kwargs)
        kind, made = known
        if kind is FakeTensor:
            return tensors[0] if made is None else self._make(made, tensors)
        return kind(self._make(one, tensors) for one in made)

    def _describe(self, values: Iterable[Any], key: list[Any], tensors: list[FakeTensor]) -> bool:
        """Add to the key. False if there is a value that can't be described."""
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if (
                    value.constant is not None
                    or value.layout is not torch.strided
                    or value.is_conj()
                ):
                    return False
                tensors.append(value)
                size = value.untyped_storage().nbytes()
                key += (value.shape, value.stride(), value.dtype, value.storage_offset(), size)
            elif kind is list or kind is tuple:
                key.append(len(value))
                if not self._describe(value, key, tensors):
                    return False
            elif isinstance(value, torch.Tensor | torch.SymInt):
                return False
            else:
                key += (kind, value)
        return True

    @staticmethod
    def _learnt(func: Any, tensors: list[FakeTensor], result: Any) -> Any:
        """The kind of the result and its parts, to be remembered. None: it has to be called each
        time.
        """
        if any(tag in func.tags for tag in _CHANGING) or not tensors:
            return None
        if func._schema.is_mutable:  # in place, or into a tensor that it may resize
            return (
                (FakeTensor, None)
                if result is tensors[0] and func._schema.name.endswith("_")
                else None
            )
        parts = [result] if isinstance(result, torch.Tensor) else result
        if not isinstance(parts, list | tuple) or not all(
            type(part) is FakeTensor for part in parts
        ):
            return None
        if any(part.constant is not None or part.is_conj() for part in parts):
            return None
        first, *others = (tensor.untyped_storage()._cdata for tensor in tensors)
        made: list[_Made] = []
        for part in parts:
            storage = part.untyped_storage()._cdata
            if part.layout is not torch.strided or storage in others:
                return None
            offset = part.storage_offset() if storage == first else None
            if offset is None:
                others.append(storage)
                alone = torch.empty_strided(
                    part.shape, part.stride(), dtype=part.dtype, device="meta"
                )
                if part.untyped_storage().nbytes() != alone.untyped_storage().nbytes():
                    return None
            made.append((part.shape, part.stride(), part.dtype, offset))
        return (FakeTensor, made[0]) if parts is not result else (type(result), made)

    def _make(self, made: _Made, tensors: list[FakeTensor]) -> FakeTensor:
        shape, stride, dtype, offset = made
        if offset is None:
            bare = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        else:
            storage = tensors[0].untyped_storage()
            bare = torch.empty(0, dtype=dtype, device="meta").set_(storage, offset, shape, stride)
        return FakeTensor(self._fake, bare, _CPU)
