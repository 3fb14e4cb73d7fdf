"""NumPy's arrays and scalars in a torch file, made without NumPy's own unpickling.

That takes a file's word for what a type is, with fields of pointers in it. torch's safe unpickler makes these stand-ins
instead; scalars come out right at once, arrays by `unwrap`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

from core.checkpoint.state import array_types

_CONTAINERS = (dict, OrderedDict, Counter, list, tuple)
_WITHOUT_FIELDS = (None, None, None)


class _Type:
    """Stands for `numpy.dtype`."""

    __hash__ = None  # type: ignore[assignment]  # is replaced, which a key can't be

    def __init__(self, code: Any, *_: Any) -> None:
        self.dtype = array_types.type_of(code)

    def __setstate__(self, state: Any) -> None:
        """The byte order, and nothing that makes another type of it."""
        _, order, *fields = state[:5]
        if tuple(fields) != _WITHOUT_FIELDS:
            raise ValueError(f"NumPy's type {self.dtype.str!r} with fields")
        self.dtype = array_types.type_of(order + self.dtype.str[1:])


class _Array:
    """Stands for `numpy.ndarray`."""

    __hash__ = None  # type: ignore[assignment]  # as an array: no key

    def __init__(self, *_: Any) -> None:
        self.array: Any = None

    def __setstate__(self, state: Any) -> None:
        """Build the array from its pickled state."""
        _, shape, kind, is_fortran, content = state
        self.array = array_types.array_of(_dtype(kind), shape, content, "F" if is_fortran else "C")


def _reconstruct(kind: type, *_: Any) -> _Array:
    if kind is not _Array:
        raise TypeError(f"an array of class {kind}")
    return _Array()


def _scalar(kind: Any, content: Any = b"") -> Any:
    return array_types.array_of(_dtype(kind), (), content)[()]


def _dtype(kind: Any) -> Any:
    if type(kind) is not _Type:
        raise TypeError(f"a {type(kind).__name__}, where a type of NumPy's was expected")
    return kind.dtype


_MODULES = ("numpy._core.multiarray", "numpy.core.multiarray")
"""NumPy 1 pickled under the second name."""

STAND_INS: list[tuple[Any, str]] = [
    (_Type, "numpy.dtype"),
    (_Array, "numpy.ndarray"),
    *((_reconstruct, f"{module}._reconstruct") for module in _MODULES),
    *((_scalar, f"{module}.scalar") for module in _MODULES),
]
"""The stand-ins, for `torch.serialization.safe_globals`."""


def unwrap(value: Any, max_values: int) -> Any:
    """The same state with arrays in it; dicts and lists are changed in place.

    Args:
        value: made by torch's unpickler with `STAND_INS`.
        max_values: the most values in it. One that repeats its parts in each other has too many to look at.

    Raises:
        RecursionError: it is nested too deeply, or holds itself.
        ValueError: an array has nothing in it, or there are too many values.
    """
    return _ArrayPickle(max_values).unwrap(value)


class _ArrayPickle:
    def __init__(self, num_left: int) -> None:
        self._num_left = num_left

    def unwrap(self, value: Any) -> Any:
        kind = type(value)
        if kind is _Array:
            return _filled(value)
        if kind is _Type:
            return value.dtype
        if kind not in _CONTAINERS:
            return value
        # A part that is in several places is walked each time, so it counts each time.
        self._num_left -= 1 + len(value)
        if self._num_left < 0:
            raise ValueError("more values than there is room for in a file of this size")
        if kind is tuple:
            return tuple(map(self.unwrap, value))
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            value[key] = self.unwrap(item)
        return value


def _filled(wrapped: _Array) -> Any:
    if wrapped.array is None:
        raise ValueError("an array without content")
    return wrapped.array
