"""Which of the checkpoints in a folder to go on from."""

from __future__ import annotations

import os
import posixpath
import warnings
from typing import TYPE_CHECKING, Any

from core.checkpoint import digest, formats, manifest
from core.checkpoint.folder import folder_of
from core.contract.errors import CheckpointCorruptedError

if TYPE_CHECKING:
    from core.contract.checkpoint_io import PathLike


def newest_valid(folder: PathLike, first: PathLike | None = None) -> str | None:
    """One rank. The newest checkpoint in `folder` that verifies; a warning names each newer one that doesn't.

    Args:
        folder: a local path or a URL; what lies in it in any form is looked at.
        first: the checkpoint that the user meant, tried before the others.

    Returns:
        Its path; None if there is none.
    """
    candidates = sorted(_dated(os.fspath(folder)), reverse=True)
    paths = [path for _, path in candidates]
    if first is not None:
        paths = [os.fspath(first), *(path for path in paths if path != os.fspath(first))]
    for path in paths:
        try:
            formats.verify_checkpoint(path)
        except CheckpointCorruptedError as error:
            warnings.warn(f"{error} Looking for an older one.", stacklevel=2)
        except FileNotFoundError:
            continue
        else:
            return path
    return None


def _dated(folder: str) -> list[tuple[float, str]]:
    """Time at which each checkpoint was saved, and its path. What can't be dated comes first: its damage is told."""
    import fsspec

    filesystem, name = fsspec.url_to_fs(folder)
    try:
        entries = filesystem.ls(name, detail=True)
    except FileNotFoundError:
        return []
    found = []
    for entry in entries:
        base = entry["name"].rstrip("/").rpartition("/")[2]
        path = posixpath.join(folder, base)
        if base.startswith(".") or base.endswith(digest.SUFFIX):
            continue
        if entry["type"] == "directory":
            found.append((_saved_at(path), path))
        elif base.endswith(formats.FILE_SUFFIXES):
            found.append((_modified_at(entry), path))
    return found


def _saved_at(path: str) -> float:
    folder = folder_of(path)
    try:
        return manifest.from_bytes(folder.read_manifest(), folder.name_of(manifest.NAME)).saved_at_ns / 1e9
    except FileNotFoundError:
        return 0.0  # some other folder, or a save that didn't end
    except CheckpointCorruptedError:
        return float("inf")


def _modified_at(entry: dict[str, Any]) -> float:
    modified = entry.get("mtime") or entry.get("LastModified") or entry.get("created") or 0.0
    return float(modified.timestamp()) if hasattr(modified, "timestamp") else float(modified)
