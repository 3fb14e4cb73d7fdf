"""A user's path: one that the operating system reaches, or one behind an fsspec file system."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.checkpoint.storage import messages
from core.text.file_urls import filesystem_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract.checkpoint_io import PathLike

_MODIFIED = ("mtime", "LastModified", "last_modified", "created")
"""The names that file systems have for the time of the last change."""


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A path behind an fsspec file system, and what the forms of a checkpoint do there alike.

    Attributes:
        filesystem: fsspec's.
        name: the path in it.
        url: as the user wrote it, for messages.
    """

    filesystem: Any
    name: str
    url: str

    @property
    def parent(self) -> str:
        """The folder that it is in."""
        return self.name.rpartition("/")[0]

    def names_in(self, folder: str) -> list[str]:
        """Names of what is in a folder."""
        return [
            entry.rstrip("/").rpartition("/")[2]
            for entry in self.filesystem.ls(folder, detail=False)
        ]

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.rm_file(name)


def path_of(path: PathLike) -> Path | RemotePath:
    """The local path, or the one behind fsspec, that a user's path or URL names."""
    text = os.path.expanduser(path)
    if "://" not in text and "::" not in text:
        return Path(text)
    from fsspec.implementations.local import LocalFileSystem

    filesystem, name = filesystem_of(text)
    return (
        Path(name)
        if isinstance(filesystem, LocalFileSystem)
        else RemotePath(filesystem, name, text)
    )


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


def modified_at(entry: dict[str, Any]) -> float:
    """Seconds since 1970 at which a file was changed last, of its details by fsspec; 0 if they
    don't say.
    """
    modified = next(filter(None, (entry.get(key) for key in _MODIFIED)), 0.0)
    return float(modified.timestamp()) if hasattr(modified, "timestamp") else float(modified)
