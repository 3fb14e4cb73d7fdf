"""The checkpoints in a folder: how old, how large, of which step, and whole or not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.checkpoint.any_form import formats
from core.checkpoint.folder.folder import folder_of
from core.checkpoint.folder.remote_folder import RemoteFolder
from core.checkpoint.format import manifest
from core.checkpoint.format.verified_file import wrong_size
from core.checkpoint.storage.messages import FILE_SUFFIXES
from core.checkpoint.storage.remote_path import RemotePath, modified_at, path_of
from core.checkpoint.upkeep.stale import size_of
from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.checkpoint.folder.folder import Folder
    from core.checkpoint.folder.reader import FolderReader
    from core.contract.checkpoint_io import PathLike


@dataclass(frozen=True, slots=True)
class Listed:
    """One checkpoint of a folder.

    Attributes:
        path: of it.
        saved_at_s: seconds since 1970 at which it was saved, or a file changed last; 0 if that is
            unknown.
        size_bytes: with all of its files.
        step: optimizer steps that were made; None if nothing says so, or a whole file would have to
            be read for it.
        state: `"complete"` if all files are there with their sizes, `"verified"` if every byte has
            been compared, `"damaged"`, or `"link"`.
        detail: the damage in a sentence, or where a link leads; else empty.
    """

    path: str
    saved_at_s: float
    size_bytes: int
    step: int | None
    state: str
    detail: str = ""

    @property
    def is_whole(self) -> bool:
        """True if nothing is known to be missing."""
        return self.state in ("complete", "verified")


def list_checkpoints(
    folder: PathLike, *, verify: bool = False, progress: Callable[[int, int], None] | None = None
) -> list[Listed]:
    """The checkpoints in a folder, local or a URL, the newest first; or the one that the folder
    itself is.

    Args:
        folder: of checkpoints, or one of them.
        verify: compare every byte with its digest.
        progress: as for `verify_checkpoint`.

    Raises:
        FileNotFoundError: it isn't there.
    """
    found = [_listed(path, verify, progress) for path in _candidates(folder)]
    return sorted(found, key=lambda listed: (-listed.saved_at_s, listed.path))


def _candidates(folder: PathLike) -> Iterator[str]:
    opened = folder_of(folder)
    if opened.exists():
        yield os.fspath(folder)
        return
    path = path_of(folder)
    names = sorted(os.listdir(path) if isinstance(path, Path) else path.names_in(path.name))
    for name in names:
        place = str(path / name) if isinstance(path, Path) else f"{path.url.rstrip('/')}/{name}"
        if not name.startswith(".") and _is_one(place, name):
            yield place


def _is_one(place: str, name: str) -> bool:
    folder = folder_of(place)
    if folder.is_file():
        return name.endswith(FILE_SUFFIXES)
    if folder.exists() or os.path.islink(place):
        return True
    names = _sizes(folder)
    return bool(names) and all(manifest.OWN_FILE.fullmatch(name) for name in names)


def _listed(path: str, verify: bool, progress: Callable[[int, int], None] | None) -> Listed:
    if os.path.islink(path):
        return Listed(
            path, os.lstat(path).st_mtime, 0, None, "link", f"leads to {os.readlink(path)}"
        )
    folder = folder_of(path)
    size_bytes, saved_at_s, step, state, detail = 0, 0.0, None, "complete", ""
    try:
        if folder.is_file():
            size_bytes, saved_at_s = _file_facts(path)
        else:
            size_bytes = sum(_sizes(folder).values())
            saved_at_s, step = formats.with_folder(folder, lambda reader: _facts(folder, reader))
        if verify:
            formats.verify_checkpoint(path, progress)
            state = "verified"
    except CheckpointError as error:
        state, detail = "damaged", str(error)
    return Listed(path, saved_at_s, size_bytes, step, state, detail)


def _facts(folder: Folder, reader: FolderReader) -> tuple[float, int | None]:
    """The time at which it was saved, and the step, once all of its files have been found."""
    sizes = _sizes(folder)
    for name, entry in reader.manifest.files.items():
        if name not in sizes:
            raise FileNotFoundError(2, "is missing", name)
        if sizes[name] != entry.size_bytes:
            raise wrong_size(folder.name_of(name), entry.size_bytes)
    return reader.manifest.saved_at_ns / 1e9, _step_of(reader.describe())


def _step_of(state: dict[str, Any]) -> int | None:
    progress = state.get("progress")
    for place in (progress if isinstance(progress, dict) else {}, state):
        for name in ("global_step", "step"):
            if type(place.get(name)) is int:
                return int(place[name])
    return None


def _sizes(folder: Folder) -> dict[str, int]:
    if isinstance(folder, RemoteFolder):
        return {name: size for name, size, _ in folder.entries()}
    return {entry.name: entry.stat().st_size for entry in folder.path.iterdir() if entry.is_file()}


def _file_facts(path: str) -> tuple[int, float]:
    """Bytes of a file, and seconds since 1970 at which it was changed last."""
    found = path_of(path)
    if isinstance(found, RemotePath):
        details = found.filesystem.info(found.name)
        return int(details["size"] or 0), modified_at(details)
    return size_of(found), found.stat().st_mtime
