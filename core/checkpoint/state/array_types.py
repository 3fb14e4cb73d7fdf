"""NumPy's types that a checkpoint may hold, and the one place where arrays and scalars are built
from bytes.

Numbers and strings of a native byte order. The bytes of any other type may be pointers, which a
reader would follow.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy

_KINDS = "biufcSU"
_CODE = re.compile(rf"[<>=|]?[{_KINDS}]\d{{1,9}}")
_LAST_CODE_POINT = 0x10FFFF


def is_plain(dtype: numpy.dtype[Any]) -> bool:
    """True if a type is one of numbers or strings, in this machine's byte order and without
    fields.
    """
    return (
        dtype.kind in _KINDS and dtype.isnative and dtype.names is None and dtype.subdtype is None
    )


def type_of(code: object) -> numpy.dtype[Any]:
    """The type that a file names, as `dtype.str` gives it.

    Raises:
        ValueError: it isn't one of numbers or strings in this machine's byte order.
    """
    import numpy

    if (
        type(code) is not str
        or not _CODE.fullmatch(code)
        or not is_plain(dtype := numpy.dtype(code))
    ):
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
        ValueError: these bytes aren't such an array.
    """
    import numpy

    if not dtype.itemsize:  # NumPy makes of empty strings some that are filled with nothing
        content = b""
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise ValueError(
            f"{len(content)} bytes for an array of type {dtype.str!r} and shape {tuple(shape)}"
        )
    # NumPy takes code points as they are, and fails later, where such a string is read.
    if (
        dtype.kind == "U"
        and content
        and numpy.frombuffer(content, numpy.uint32).max() > _LAST_CODE_POINT
    ):
        raise ValueError("an array of strings with a character that Unicode doesn't have")
    return numpy.ndarray(tuple(shape), dtype, bytearray(content), order=order)
