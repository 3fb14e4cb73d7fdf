"""NumPy's types that a checkpoint may hold, and the one place where arrays and scalars are built
from bytes.

Numbers and strings of a native byte order. The bytes of any other type may be pointers, which a
reader would follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy

_KINDS = "biufcSU"


def is_plain(dtype: numpy.dtype[Any]) -> bool:
    """True if a type is one of numbers or strings, in this machine's byte order and without
    fields.
    """
    return dtype.kind in _KINDS and bool(dtype.isnative)


def type_of(code: object) -> numpy.dtype[Any]:
    """The type that a file names, as `dtype.str` gives it.

    Raises:
        TypeError, ValueError: it isn't one of numbers or strings in this machine's byte order.
    """
    import numpy

    dtype = numpy.dtype(str(code))
    if not is_plain(dtype):
        raise ValueError(
            f"NumPy's type {code!r}, where one of numbers or strings in native byte order was "
            "expected"
        )
    return dtype


def array_of(
    dtype: numpy.dtype[Any],
    shape: Sequence[int],
    content: bytes | memoryview,
    order: Literal["C", "F"] = "C",
) -> numpy.ndarray[Any, Any]:
    """An array of its own memory.

    Args:
        dtype: as `type_of` gives it.
        shape: of the array.
        content: bytes of its elements.
        order: in which they stand there.

    Raises:
        TypeError, ValueError: these bytes aren't such an array.
    """
    import numpy

    if not dtype.itemsize:  # NumPy makes of empty strings some that are filled with nothing
        content = b""
    return numpy.ndarray(tuple(shape), dtype, bytearray(content), order=order)
