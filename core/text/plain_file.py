"""Reading what others have written: another thing in the place of a file is refused at once, and so
is too much.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from core.contract.checkpoint_io import PathLike


class NotAFileError(OSError):
    """Something else is in the place of a file, or more than a file of its kind has in it."""


def open_file(path: PathLike) -> BinaryIO:
    """A file to read.

    Raises:
        NotAFileError: it is something else, such as a folder or a pipe.
        OSError: it can't be opened.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        what = "something else"
        if stat.S_ISDIR(mode):
            what = "a folder"
        raise NotAFileError(f"{os.fspath(path)!r} is {what}, where a file was expected")
    return open(path, "rb")


def read_file(path: PathLike, max_bytes: int) -> bytes:
    """The whole content of a file, if it isn't longer than it may be.

    Raises:
        NotAFileError: it is longer; or as `open_file`.
        OSError: it can't be read.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise NotAFileError(
                f"{os.fspath(path)!r} has {size:,} bytes, where at most {max_bytes:,} were expected"
            )
        return file.read()
