"""Finds the newest checkpoint to go on from."""

from __future__ import annotations

import os
import posixpath
import warnings
from typing import TYPE_CHECKING
from urllib.parse import quote

from core.checkpoint import formats, manifest
from core.checkpoint.folder import folder_of
from core.checkpoint.remote_path import modified_at
from core.contract.errors import CheckpointCorruptedError
from core.text.file_urls import filesystem_of
from core.text.plain_file import NotAFileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.contract.checkpoint_io import CheckpointIO, PathLike


def newest_valid(
    *folders: PathLike,
    first: PathLike | None = None,
    storage: CheckpointIO | None = None,
    suffix: str | tuple[str, ...] = "",
) -> str | None:
    """One rank. The newest checkpoint in the folders that verifies; a warning names each newer one that doesn't.

    A checkpoint that is a folder is as old as its manifest says, which copying doesn't change; any other is as old as
    its last change, which a save sets: later than that of all that its process has found or loaded, also if the clock
    was set back.

    Args:
        folders: local paths or URLs; those that don't exist hold nothing.
        first: the checkpoint that the user meant, tried before the others.
        storage: verifies; None for the core's own, which takes checkpoints in any of its forms.
        suffix: of the names to look at, or several.

    Returns:
        Its path; None if there is none.
    """
    # A folder may be named twice.
    candidates = sorted({dated for folder in folders for dated in _dated(os.path.expanduser(folder), suffix)})
    paths = [path for *_, path in reversed(candidates)]
    if first is not None:
        paths = [os.fspath(first), *(path for path in paths if path != os.fspath(first))]
    return next((path for path in paths if _is_whole(path, storage)), None)


def _is_whole(path: str, storage: CheckpointIO | None) -> bool:
    if storage is not None and not storage.exists(path):
        return False
    try:
        (formats if storage is None else storage).verify_checkpoint(path)
    except CheckpointCorruptedError as error:
        warnings.warn(f"The search passes over a damaged checkpoint: {error} Looking for an older one.", stacklevel=4)
        return False
    except FileNotFoundError:
        return False
    return True


def _dated(folder: str, suffix: str | tuple[str, ...]) -> Iterator[tuple[float, float, str]]:
    """Times at which each checkpoint was saved and changed last, and its path.

    What can't be dated comes first: its damage is told.
    """
    from fsspec.implementations.local import LocalFileSystem

    filesystem, name = filesystem_of(folder)
    try:
        entries = filesystem.ls(name, detail=True)
    except FileNotFoundError:
        return
    for entry in entries:
        base = entry["name"].rstrip("/").rpartition("/")[2]
        path = posixpath.join(folder, quote(base) if folder.startswith("file:") else base)
        if base.startswith(".") or not base.endswith(suffix):
            continue
        if entry["type"] == "directory" or (entry.get("islink") and filesystem.isdir(entry["name"])):
            yield _saved_at(path), modified_at(entry), path
        elif suffix or base.endswith(formats.FILE_SUFFIXES):
            if isinstance(filesystem, LocalFileSystem):  # a store's clock is its own
                manifest.note_time(int(modified_at(entry) * 1e9))
            yield modified_at(entry), 0.0, path


def _saved_at(path: str) -> float:
    folder = folder_of(path)
    try:
        found = manifest.from_bytes(folder.read_manifest(), folder.name_of(manifest.NAME))
        manifest.note_time(found.saved_at_ns)
        return found.saved_at_ns / 1e9
    except FileNotFoundError:
        return 0.0  # some other folder, or a save that didn't end
    except (CheckpointCorruptedError, NotAFileError):
        return float("inf")
