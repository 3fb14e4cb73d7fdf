"""A user's path: one that the operating system reaches, or one behind an fsspec file system."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from posixpath import dirname, join
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias

from core.checkpoint.storage import disk, messages
from core.text import plain_file
from core.text.file_urls import filesystem_of
from core.text.plain_file import NotAFileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract.checkpoint_io import PathLike

_MODIFIED = ("mtime", "LastModified", "last_modified", "created")
"""The names that file systems have for the time of the last change."""


class PlaceEntry(NamedTuple):
    """A file or folder.

    Attributes:
        name: without the folders that it is in.
        is_folder: whether it is a folder.
        size_bytes: of a file.
        changed_s: seconds since 1970 at which it was changed last, by the clock of the storage; 0
            if that is unknown.
    """

    name: str
    is_folder: bool
    size_bytes: int
    changed_s: float


class LocalPlace:
    """A path that the operating system reaches, whatever is there now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    def __str__(self) -> str:
        return str(self.path)

    @property
    def parent(self) -> LocalPlace:
        """The folder that it is in."""
        return LocalPlace(self.path.parent)

    def child(self, name: str) -> LocalPlace:
        """The place of this name in it."""
        return LocalPlace(self.path / name)

    def entries(self) -> list[PlaceEntry]:
        """The contents of the folder.

        Raises:
            OSError: there is no folder.
        """
        found = []
        for path in self.path.iterdir():
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                facts = path.stat(follow_symlinks=path.exists())
                found.append(PlaceEntry(path.name, path.is_dir(), facts.st_size, facts.st_mtime))
        return found

    def is_file(self) -> bool:
        """True if a file is there."""
        return self.path.is_file()

    def open(self) -> BinaryIO:
        """The content of the file."""
        return plain_file.open_file(self.path)

    def read(self, max_bytes: int) -> bytes:
        """The content of a small file.

        Raises:
            FileNotFoundError: there is none.
            NotAFileError: something else is there, or more.
        """
        return plain_file.read_file(self.path, max_bytes)

    def delete(self) -> None:
        """Delete the file, if it is there."""
        disk.unlink(self.path)


class RemotePlace:
    """A path behind an fsspec file system, whatever is there now.

    Attributes:
        filesystem: fsspec's.
        path: in it.
        url: as the user wrote it, for messages.
    """

    def __init__(self, filesystem: Any, path: str, url: str) -> None:
        self.filesystem = filesystem
        self.path = path.rstrip("/")
        self.name = self.path.rpartition("/")[2]
        self.url = url.rstrip("/")
        if self.url.endswith(":"):  # the root of a file system
            self.url += "//"

    def __str__(self) -> str:
        return self.url

    @property
    def parent(self) -> RemotePlace:
        """The folder that it is in."""
        return RemotePlace(self.filesystem, dirname(self.path), dirname(self.url))

    def child(self, name: str) -> RemotePlace:
        """The place of this name in it."""
        return RemotePlace(self.filesystem, f"{self.path}/{name}", join(self.url, name))

    def entries(self) -> list[PlaceEntry]:
        """The contents of the folder, now: fsspec remembers listings, also after a change.

        Raises:
            OSError: there is no folder.
        """
        self.filesystem.invalidate_cache()
        return [_entry(details) for details in self.filesystem.ls(self.path, detail=True)]

    def is_file(self) -> bool:
        """True if a file is there."""
        self.filesystem.invalidate_cache()
        return bool(self.filesystem.isfile(self.path))

    def open(self) -> BinaryIO:
        """The content of the file."""
        return self.filesystem.open(self.path, "rb")  # type: ignore[no-any-return]  # fsspec has no types

    def read(self, max_bytes: int) -> bytes:
        """The content of a small file.

        Raises:
            FileNotFoundError: there is none.
            NotAFileError: something else is there, or more.
        """
        content = self.fetch(0, max_bytes + 1)
        if len(content) > max_bytes:
            raise NotAFileError(f"{self.url!r} has more than {max_bytes:,} bytes")
        return content

    def fetch(self, start: int, stop: int) -> bytes:
        """Some bytes of the file: clients of stores try that again when it fails."""
        return bytes(self.filesystem.cat_file(self.path, start=start, end=stop))

    def write(self, content: bytes) -> None:
        """Replace the content of the file: it appears whole in the stores we know."""
        self.filesystem.pipe_file(self.path, content)

    def delete(self) -> None:
        """Delete the file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.rm_file(self.path)


Place: TypeAlias = LocalPlace | RemotePlace


def names_in(folder: Place) -> list[str] | None:
    """Names of what is in a folder; None if there is none."""
    try:
        return [entry.name for entry in folder.entries()]
    except (FileNotFoundError, NotADirectoryError):
        return None


def place_of(path: PathLike) -> Place:
    """The place that a user's path or URL names."""
    text = os.path.expanduser(path)
    if "://" not in text and "::" not in text:
        return LocalPlace(Path(text))
    from fsspec.implementations.local import LocalFileSystem

    filesystem, name = filesystem_of(text)
    if isinstance(filesystem, LocalFileSystem):
        return LocalPlace(Path(name))
    return RemotePlace(filesystem, name, text)


def has_happened(is_there: Callable[[], bool], error: Exception) -> bool:
    """True if a call did its work although it failed: a store's answer may be lost on the way.

    Args:
        is_there: reads back what the call was to write.
        error: of the call.

    Raises:
        UnsettledError: that is unknown.
    """
    try:
        return is_there()
    except FileNotFoundError:
        return False
    except Exception:
        raise messages.UnsettledError("may be in its place, and can't be read back") from error


def _entry(details: dict[str, Any]) -> PlaceEntry:
    """An entry of what fsspec says of a file."""
    changed = next(filter(None, (details.get(key) for key in _MODIFIED)), 0.0)
    if hasattr(changed, "timestamp"):
        changed = changed.timestamp()
    name = details["name"].rstrip("/").rpartition("/")[2]
    return PlaceEntry(
        name, details["type"] == "directory", int(details.get("size") or 0), float(changed)
    )
