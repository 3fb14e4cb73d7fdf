"""Which folder a path names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from core.checkpoint.local_folder import LocalFolder
from core.checkpoint.remote_folder import RemoteFolder

if TYPE_CHECKING:
    from core.contract.checkpoint_io import PathLike

Folder: TypeAlias = LocalFolder | RemoteFolder


def folder_of(path: PathLike) -> Folder:
    """The folder that a local path or a URL names."""
    text = os.fspath(path)
    if "://" not in text and "::" not in text:
        return LocalFolder(Path(text))
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    filesystem, name = fsspec.url_to_fs(text)
    return LocalFolder(Path(name)) if isinstance(filesystem, LocalFileSystem) else RemoteFolder(filesystem, name, text)
