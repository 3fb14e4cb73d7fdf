"""The times of checkpoints in a folder, of any form; each save is newer than what lies beside
it.
"""

from __future__ import annotations

import contextlib
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from core.checkpoint.folder.folder import folder_of
from core.checkpoint.format import manifest
from core.checkpoint.storage.messages import FILE_SUFFIXES
from core.checkpoint.storage.remote_path import RemotePath, modified_at, path_of
from core.contract.errors import CheckpointCorruptedError
from core.text.plain_file import NotAFileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.contract.checkpoint_io import PathLike


def look_beside(path: PathLike) -> None:
    """One process, before a save. Note when what lies beside it was saved, once a folder, so that
    the save is newer.

    What can't be read counts for nothing: it is no reason not to save.
    """
    place = path_of(path)
    folder = (
        place.url.rpartition("/")[0] + "/"
        if isinstance(place, RemotePath)
        else str(place.absolute().parent)
    )
    if folder not in _looked_at:
        _looked_at.add(folder)
        with contextlib.suppress(Exception):  # of any store's making
            for _ in dated(folder, ""):
                pass


_looked_at: set[str] = set()
"""The folders whose checkpoints' times this process has noted."""


def dated(folder: str, suffix: str | tuple[str, ...]) -> Iterator[tuple[float, float, str]]:
    """Times at which each checkpoint was saved and changed last, and its path.

    What can't be dated comes first, so that its damage is reported.
    """
    place = path_of(folder)
    for base, is_folder, changed in _listed(place):
        path = posixpath.join(folder, quote(base) if folder.startswith("file:") else base)
        if base.startswith(".") or not base.endswith(suffix):
            continue
        if is_folder:
            yield _saved_at(path), changed, path
        elif suffix or base.endswith(FILE_SUFFIXES):
            if isinstance(place, Path):  # a store's clock is its own
                manifest.note_time(int(changed * 1e9))
            yield changed, 0.0, path


def _listed(place: Path | RemotePath) -> Iterator[tuple[str, bool, float]]:
    """Name, whether it is a folder, and time of the last change of each thing in a folder, if there
    is one.
    """
    if isinstance(place, RemotePath):
        with contextlib.suppress(FileNotFoundError):
            for entry in place.filesystem.ls(place.name, detail=True):
                is_folder = entry["type"] == "directory"
                yield entry["name"].rstrip("/").rpartition("/")[2], is_folder, modified_at(entry)
    elif place.is_dir():
        for path in place.iterdir():
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                yield path.name, path.is_dir(), path.stat(follow_symlinks=path.exists()).st_mtime


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
