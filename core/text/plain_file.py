"""Reading what others have written: a pipe or device in the place of a file is refused at once, and so is too much."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from core.contract.checkpoint_io import PathLike

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotAFileError(OSError):
    """Something else is in the place of a file, or more than a file of its kind has in it."""


def open_file(path: PathLike) -> BinaryIO:
    """A file to read.

    Raises:
        NotAFileError: it is a folder, pipe, socket or device.
        OSError: it can't be opened.
    """
    return open(_open(path), "rb")


def read_file(path: PathLike, max_bytes: int) -> bytes:
    """The whole content of a file, if it isn't longer than it may be.

    Raises:
        NotAFileError: it is longer; or as `open_file`.
        OSError: it can't be read.
    """
    descriptor = _open(path)
    try:
        size = os.fstat(descriptor).st_size
        if size > max_bytes:
            raise NotAFileError(f"{os.fspath(path)!r} has {size:,} bytes, where at most {max_bytes:,} were expected")
        content = os.read(descriptor, size)  # of up to 2 GiB all at once
    finally:
        os.close(descriptor)
    return content


def _open(path: PathLike) -> int:
    # Looked at before, since to open a device may do something; and opened without waiting for a pipe's other end.
    _check(path, os.stat(path).st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check(path, os.fstat(descriptor).st_mode)
    except NotAFileError:
        os.close(descriptor)
        raise
    return descriptor


def _check(path: PathLike, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise NotAFileError(f"{os.fspath(path)!r} is {kind}, where a file was expected")
