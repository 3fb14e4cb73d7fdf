"""The digest within an archive of torch.save, for folders in which programs expect no second file.

It is the comment that ends the file, as archives may have one:
`core xxh3-128 <32 hexadecimal digits>`, of all bytes before it. torch reads such a file as any
other.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any, BinaryIO

from core.checkpoint.format import digest

if TYPE_CHECKING:
    from collections.abc import Callable

_HEAD = b"core xxh3-128 "
_SIZE = len(_HEAD) + 32
_LENGTH = struct.pack("<H", _SIZE)
_END = b"PK\x05\x06"
"""Begins the last entry of an archive, 22 bytes, of which the last two are the comment's length."""


def write(file: digest.HashingWriter, save: Callable[[Any], object]) -> None:
    """Write what `save` writes, an archive without a comment, and its digest as the comment."""
    held = _HoldsLengthBack(file)
    save(held)
    assert held.length == b"\0\0"
    file.write(_LENGTH)
    file.write(_HEAD + file.hexdigest().encode())


def read(file: BinaryIO) -> str | None:
    """The digest in a file; None if it has none."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - _SIZE - 22))
    end = file.read()
    is_sealed = end.startswith(_END) and end[20:22] == _LENGTH and end[22:].startswith(_HEAD)
    return end[22 + len(_HEAD) :].decode("ascii", "replace") if is_sealed else None


def is_right(file: BinaryIO, expected: str) -> bool:
    """True if all bytes before the comment have this digest."""
    size = file.seek(0, os.SEEK_END) - _SIZE
    file.seek(0)
    return digest.of_file(file, size) == expected


class _HoldsLengthBack:
    """A file that is written front to back, but for its last two bytes."""

    def __init__(self, file: digest.HashingWriter) -> None:
        self._file = file
        self.length = b""

    def write(self, data: Any) -> int:
        """Write all but the two bytes that have come last."""
        view = memoryview(data).cast("B")
        if len(view) < 2:
            view = memoryview(self.length + bytes(view))
        else:
            self._file.write(self.length)
        self._file.write(view[:-2])
        self.length = bytes(view[-2:])
        return len(data)

    def flush(self) -> None:
        """Do nothing, for torch: the file is flushed when it is complete."""
