"""The memory that reading a torch file takes, known before anything is made of it.

torch's safe unpickler calls what makes values: `bytearray(3000000000)` is 30 bytes in a file, and 3 GB in memory. A
walk over the same instructions that makes nothing knows what each call would take.
"""

from __future__ import annotations

import os
import pickletools
import struct
import zipfile
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MAX_COPIES = 64
"""The most values that calls make for each byte of the file: they may be made of the same ones again and again."""
_NUM_LEGACY_PICKLES = 5
"""A magic number, a version, facts of the system, the state, and the order of the storages whose bytes follow."""
_LOCAL_HEADER = struct.Struct("<26xHH")

_VIEWS = (
    *("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"),
    *("torch.nn.parameter.Parameter", "torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2"),
    *("torch._utils._rebuild_tensor_v3", "torch._utils._rebuild_meta_tensor_no_storage"),
)
"""Functions that copy none of what they are given."""
_FROM_TYPE = "torch._tensor._rebuild_from_type_v2"
_QUANTIZED = "torch._utils._rebuild_qtensor"
_TENSOR_SIZE = {
    "torch._utils._rebuild_tensor": 2,
    "torch._utils._rebuild_tensor_v2": 2,
    "torch._utils._rebuild_tensor_v3": 2,
}
"""Place of the shape among their arguments."""
_ENCODE = "_codecs.encode"
_MAX_SIZE = 2**63


class TooCostlyError(ValueError):
    """It takes more memory to read a file than what it holds allows, or its parts are packed as torch doesn't."""


class _Value:
    """Anything that is no number, text or name: its size is all that is known."""

    def __init__(self, size: int = 1, items: tuple[Any, ...] = ()) -> None:
        self.size = size
        self.items = items


class _Name(str):
    """Something that is imported, `module.name`."""


def check(file: BinaryIO) -> None:
    """Check that a file takes no more memory than what it holds allows.

    Args:
        file: seekable; a torch file, or anything else.

    Raises:
        TooCostlyError: it doesn't.
        ValueError, ...: it is no torch file.
    """
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    is_zip = file.read(4) == b"PK\x03\x04"
    file.seek(0)
    if is_zip:
        for content in _pickles_in(file, size_bytes):
            _Walk(_MAX_COPIES * size_bytes).take(content)
    else:
        content = _Bounded(file, size_bytes)
        for _ in range(_NUM_LEGACY_PICKLES):
            _Walk(_MAX_COPIES * size_bytes).take(content)
    file.seek(0)


def _pickles_in(file: BinaryIO, size_bytes: int) -> Iterator[_Bounded]:
    entries = zipfile.ZipFile(file).infolist()
    if packed := [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]:
        raise TooCostlyError(f"its part {packed[0]!r:.80} is compressed, which torch never does")
    if sum(entry.file_size for entry in entries) > size_bytes:
        raise TooCostlyError("its parts are larger than the file")
    for entry in entries:
        if entry.filename.endswith(".pkl"):
            file.seek(entry.header_offset)
            # Not by zipfile, which checks a sum that torch may leave out.
            name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            file.seek(name_bytes + extra_bytes, os.SEEK_CUR)
            yield _Bounded(file, entry.file_size)


class _Bounded:
    """Bytes of a file, of which no more are asked for than there are."""

    def __init__(self, file: BinaryIO, num_left: int) -> None:
        self._file, self._num_left = file, num_left

    def read(self, size: int) -> bytes:
        return self._took(self._file.read(min(size, self._num_left)))

    def readline(self) -> bytes:
        return self._took(self._file.readline(self._num_left))

    def _took(self, content: bytes) -> bytes:
        self._num_left -= len(content)
        return content


class _Walk:
    """One pickle, from its first instruction to the last that torch's safe unpickler knows."""

    def __init__(self, max_values: int) -> None:
        self._num_left = max_values
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def take(self, content: _Bounded) -> None:
        """Walk through the next pickle.

        Raises:
            TooCostlyError: it would make too much.
        ValueError: it is none.
        """
        try:
            for opcode, argument, _ in pickletools.genops(content):  # type: ignore[arg-type]  # it reads, as a file does
                step = _STEPS.get(opcode.name)
                if step is None:  # torch refuses it
                    return
                step(self, argument)
        except (IndexError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"its pickle can't be followed: {error!r}") from error

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def mark(self, _: Any) -> None:
        self._below.append(self._stack)
        self._stack = []

    def _pop(self, number: int | None) -> list[Any]:
        if number is None:
            items, self._stack = self._stack, self._below.pop()
        else:
            items = self._stack[-number:]
            del self._stack[-number:]
        return items

    def fill(self, number: int | None) -> None:
        """Move the last `number` values, or those since the mark, into the container below them."""
        items = self._pop(number)
        self._stack[-1].size += len(items)

    def make_tuple(self, number: int | None) -> None:
        items = self._pop(number)
        self.push(_Value(min(1 + sum(map(_size, items)), _MAX_SIZE), tuple(items)))

    def put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def get(self, index: int) -> None:
        self.push(self._memo[index])

    def call(self, _: Any) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        self.push(_Value(self._called(str(function), arguments.items)))

    def build(self, _: Any) -> None:
        self._spend(_size(self._stack.pop()))

    def persistent(self, _: Any) -> None:
        self._stack[-1] = _Value()  # a storage: torch compares its size with the bytes that are there

    def _called(self, name: str, arguments: tuple[Any, ...]) -> int:
        """The size of what a call makes, which is counted."""
        if name == _FROM_TYPE:
            function, _, inner, *_ = arguments
            return self._called(str(function), inner.items)
        if name.endswith(("Tensor", "Storage")) and arguments:
            raise TooCostlyError(f"it makes a {name:.80} of a size, without values")
        if name == _ENCODE and str(arguments[1]) != "latin1":
            raise TooCostlyError("it encodes text in another way than pickles do")
        if name in _VIEWS:
            place = _TENSOR_SIZE.get(name)
            return _num_elements(arguments[place]) if place is not None else _size(arguments[0])
        size = sum(map(_size, arguments))
        if name.endswith((".bytearray", ".bytes")):  # a number is a size
            size += sum(abs(each) for each in arguments if type(each) is int)
        if name == _QUANTIZED:
            size += _num_elements(arguments[2])
        self._spend(size)
        return size + 1

    def _spend(self, num_values: int) -> None:
        self._num_left -= num_values
        if self._num_left < 0:
            raise TooCostlyError("more values than there is room for in a file of this size")


def _num_elements(shape: _Value) -> int:
    number = 1
    for size in shape.items:
        number = min(number * abs(size), _MAX_SIZE)
    return number


def _size(value: Any) -> int:
    if isinstance(value, _Value):
        return value.size
    return len(value) if isinstance(value, str | bytes) and not isinstance(value, _Name) else 1


def _global(walk: _Walk, argument: str) -> None:
    walk.push(_Name(argument.replace(" ", ".")))


def _scalar(walk: _Walk, argument: Any) -> None:
    walk.push(argument)


def _container(walk: _Walk, _: Any) -> None:
    walk.push(_Value(0))


def _nothing(walk: _Walk, _: Any) -> None:
    """Do nothing."""


def _opaque(walk: _Walk, _: Any) -> None:
    walk.push(None)


_STEPS: dict[str, Callable[[_Walk, Any], None]] = {
    "GLOBAL": _global,
    "NEWOBJ": _Walk.call,
    "REDUCE": _Walk.call,
    "BUILD": _Walk.build,
    "BINPERSID": _Walk.persistent,
    "MARK": _Walk.mark,
    "APPEND": lambda walk, _: walk.fill(1),
    "APPENDS": lambda walk, _: walk.fill(None),
    "SETITEM": lambda walk, _: walk.fill(2),
    "SETITEMS": lambda walk, _: walk.fill(None),
    "TUPLE": lambda walk, _: walk.make_tuple(None),
    "TUPLE1": lambda walk, _: walk.make_tuple(1),
    "TUPLE2": lambda walk, _: walk.make_tuple(2),
    "TUPLE3": lambda walk, _: walk.make_tuple(3),
    "EMPTY_TUPLE": lambda walk, _: walk.push(_Value(1)),
    **dict.fromkeys(("EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET"), _container),
    **dict.fromkeys(("NONE", "NEWFALSE", "NEWTRUE"), _opaque),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), _scalar),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINSTRING"), _scalar),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Walk.get),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Walk.put),
    **dict.fromkeys(("PROTO", "STOP"), _nothing),
}
