"""Everything that changes a local disk when a folder is written: one place to look for what may
fail, or come too late.

A change is safe from a crash of the machine when the file, and the folder that names it, were
synced.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

_BUFFER_BYTES = 1 << 18
_NAME = re.compile(r"\..+\.[0-9a-f]{8}\.partial", re.DOTALL)  # a name may hold a line break


def create(path: Path) -> BinaryIO:
    """A new file to write. What is larger than a small buffer is written without being copied."""
    return path.open("xb", buffering=_BUFFER_BYTES)


def set_time(file: BinaryIO, time_ns: int) -> None:
    """Set the time of a file's last change, in nanoseconds since 1970, where the file system allows
    it.
    """
    file.flush()  # what is written later would change it once more
    with contextlib.suppress(OSError):
        os.utime(file.fileno(), ns=(time_ns, time_ns))


def sync(file: BinaryIO) -> None:
    """Bring what was written to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        with contextlib.suppress(OSError):  # what is synced is synced
            os.close(descriptor)


def make_folder(path: Path) -> None:
    """A new, empty folder."""
    path.mkdir()


def make_parents(path: Path) -> None:
    """The folder, and those above it that are missing, each with its name synced."""
    if not path.is_dir():
        make_parents(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def rename(old: Path, new: Path) -> None:
    """Rename a file or folder, in one step. A file takes the place of a file, a folder that of an
    empty one.

    Raises:
        OSError: also if a folder would take the place of one that isn't empty.
    """
    old.rename(new)


def unlink(path: Path) -> None:
    """Delete a file, if it is there."""
    path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Delete an empty folder."""
    path.rmdir()


def remove_tree(path: Path) -> None:
    """Delete a file, or a folder with all in it, if it is there. Of a link, only the link."""
    if path.is_dir() and not path.is_symlink():
        for entry in path.iterdir():
            remove_tree(entry)
        remove_folder(path)
    else:
        unlink(path)


def partial_path(path: Path, token: str) -> Path:
    """The path at which the next content of `path` is written.

    Args:
        path: of the file or folder.
        token: of the writer, 8 hexadecimal digits.
    """
    return path.with_name(f".{path.name}.{token}.partial")


def is_partial(name: str) -> bool:
    """True if a file or folder of this name is what a writer has left, or is at work on."""
    return _NAME.fullmatch(name) is not None
