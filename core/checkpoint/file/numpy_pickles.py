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
    from collections.abc import Callable, Iterator, Sequence


class _StandIn:
    """Is replaced by what it has made, and so can't be a key."""

    __hash__ = None  # type: ignore[assignment]
    made: Any

    def __init__(self, *_: object) -> None:
        """Ignore what an empty array is made of."""


class _Type(_StandIn):
    """Stands for `numpy.dtype`."""

    def __init__(self, code: object, *_: object) -> None:
        self.made = array_types.type_of(code)

    def __setstate__(self, state: tuple[object, ...]) -> None:
        """The byte order, and nothing that makes another type of it."""
        _, order, *fields = state[:5]
        if fields != [None, None, None]:
            raise ValueError(f"NumPy's type {self.made.str!r} with fields")
        self.made = array_types.type_of(order + self.made.str[1:])


class _Array(_StandIn):
    """Stands for `numpy.ndarray`, and for the function that pickles call to make an empty one."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Build the array from its pickled state."""
        _, shape, kind, is_fortran, content = state
        self.made = array_types.array_of(kind.made, shape, content, "F" if is_fortran else "C")


def _scalar(kind: _Type, content: bytes = b"") -> object:
    return array_types.array_of(kind.made, (), content)[()]


_MODULES = ("numpy._core.multiarray", "numpy.core.multiarray")
"""NumPy 1 pickled under the second name."""

STAND_INS: list[tuple[Callable[..., object], str]] = [
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
    names = [each[1] if isinstance(each, tuple) else each.__module__ for each in programs]
    kept = [each for each, name in zip(programs, names, strict=True) if name.partition(".")[0] != "numpy"]
    serialization.clear_safe_globals()
    serialization.add_safe_globals([*kept, *STAND_INS, *others])
    try:
        yield
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(programs)


def unwrap(value: Any) -> Any:
    """The same state with arrays in it, as torch's unpickler made it of `STAND_INS`; changed in place."""
    if isinstance(value, _StandIn):
        return value.made
    if (kind := type(value)) is tuple:
        return tuple(map(unwrap, value))
    if kind in (dict, OrderedDict, Counter, list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            value[key] = unwrap(item)
    return value
