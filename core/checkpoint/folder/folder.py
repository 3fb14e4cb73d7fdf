"""Turns a path into the folder that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from core.checkpoint.folder.local_folder import LocalFolder
from core.checkpoint.storage.place import LocalPlace, Place, place_of

if TYPE_CHECKING:
    from core.checkpoint.folder.remote_folder import RemoteFolder
    from core.contract.checkpoint_io import PathLike

    Folder: TypeAlias = LocalFolder | RemoteFolder


def folder_of(path: PathLike) -> Folder:
    """The folder that a local path or a URL names."""
    return folder_at(place_of(path))


def folder_at(place: Place) -> Folder:
    """The folder at a place."""
    if isinstance(place, LocalPlace):
        return LocalFolder(place.path)
    from core.checkpoint.folder.remote_folder import RemoteFolder  # most are local

    return RemoteFolder(place)
