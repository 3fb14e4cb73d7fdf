"""NumPy's arrays and scalars in a torch file, made without NumPy's own unpickling.

NumPy's unpickler trusts the dtype in the file, object fields included, which it then reads as pointers. torch's safe
unpickler makes these stand-ins instead; scalars come out right at once, arrays by `unwrap`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import serialization

from core.checkpoint.state import array_types

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class _Type:
    """Stands for `numpy.dtype`."""

    __hash__ = None  # type: ignore[assignment]  # is replaced, which a key can't be

    def __init__(self, code: Any, *_: Any) -> None:
        self.dtype = array_types.type_of(code)

    def __setstate__(self, state: Any) -> None:
        """The byte order, and nothing that makes another type of it."""
        _, order, *fields = state[:5]
        if fields != [None, None, None]:
            raise ValueError(f"NumPy's type {self.dtype.str!r} with fields")
        self.dtype = array_types.type_of(order + self.dtype.str[1:])


class _Array:
    """Stands for `numpy.ndarray`, and for the function that pickles call to make an empty one."""

    __hash__ = None  # type: ignore[assignment]  # as an array: no key

    def __init__(self, *_: Any) -> None:
        """Ignore what the empty one is made of."""

    def __setstate__(self, state: Any) -> None:
        """Build the array from its pickled state."""
        _, shape, kind, is_fortran, content = state
        self.array = array_types.array_of(kind.dtype, shape, content, "F" if is_fortran else "C")


def _scalar(kind: Any, content: Any = b"") -> Any:
    return array_types.array_of(kind.dtype, (), content)[()]


_MODULES = ("numpy._core.multiarray", "numpy.core.multiarray")
"""NumPy 1 pickled under the second name."""

STAND_INS: list[tuple[Any, str]] = [
    (_Type, "numpy.dtype"),
    (_Array, "numpy.ndarray"),
    *((_Array, f"{module}._reconstruct") for module in _MODULES),
    *((_scalar, f"{module}.scalar") for module in _MODULES),
]
"""As `torch.serialization.add_safe_globals` takes them."""
NAMES = frozenset(name for _, name in STAND_INS)


@contextmanager
def allowed(others: Sequence[Any]) -> Iterator[None]:
    """A context in which torch's safe unpickler makes stand-ins, and nothing of NumPy's that the program allows it.

    Args:
        others: what else it may make.
    """
    programs = serialization.get_safe_globals()
    serialization.clear_safe_globals()
    serialization.add_safe_globals([*(each for each in programs if not _is_numpys(each)), *STAND_INS, *others])
    try:
        yield
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(programs)


def _is_numpys(allowed: Any) -> bool:
    name: str = allowed[1] if isinstance(allowed, tuple) else allowed.__module__
    return name.partition(".")[0] == "numpy"


def unwrap(value: Any) -> Any:
    """The same state with arrays in it, as torch's unpickler made it of `STAND_INS`; changed in place."""
    kind = type(value)
    if kind is _Array:
        return value.array
    if kind is _Type:
        return value.dtype
    if kind is tuple:
        return tuple(map(unwrap, value))
    if kind in (dict, OrderedDict, Counter, list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            value[key] = unwrap(item)
    return value
