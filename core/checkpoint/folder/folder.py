"""Turns a path into the folder that it names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from core.checkpoint.folder.local_folder import LocalFolder
from core.checkpoint.storage.remote_path import path_of

if TYPE_CHECKING:
    from core.checkpoint.folder.remote_folder import RemoteFolder
    from core.contract.checkpoint_io import PathLike

    Folder: TypeAlias = LocalFolder | RemoteFolder


def folder_of(path: PathLike) -> Folder:
    """The folder that a local path or a URL names."""
    if isinstance(found := path_of(path), Path):
        return LocalFolder(found)
    from core.checkpoint.folder.remote_folder import RemoteFolder  # most are local

    return RemoteFolder(found)
