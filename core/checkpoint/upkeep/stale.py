"""Files that writers which were killed have left in a folder of checkpoints."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from core.checkpoint.file.location import is_lonely_digest
from core.checkpoint.folder.local_folder import LocalFolder
from core.checkpoint.folder.remote_folder import STALE_S, RemoteFolder
from core.checkpoint.format import manifest
from core.checkpoint.storage import disk, locks
from core.checkpoint.storage.disk import is_partial
from core.checkpoint.storage.remote_path import RemotePath, modified_at, path_of
from core.contract.errors import CheckpointCorruptedError
from core.text.plain_file import NotAFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.contract.checkpoint_io import PathLike

_UNNAMED = "a file of a save that did not end, which the manifest doesn't name"


@dataclass(frozen=True, slots=True)
class Removable:
    """A file or folder that no checkpoint needs, and no living writer.

    Attributes:
        path: of it; a URL behind fsspec.
        size_bytes: with all that is in it.
        why: in a few words.
        delete: deletes it.
    """

    path: str
    size_bytes: int
    why: str
    delete: Callable[[], None]


def sweep_folder(folder: PathLike) -> None:
    """One process. Delete what writers that were killed have left in a folder; nothing that a
    living one needs.

    Locks show which is which: on a file system without them, and on an object store, all stays.
    What can't be deleted stays, too: `core checkpoint gc` says why.

    Args:
        folder: of checkpoints, local or a URL.
    """
    path = path_of(folder)
    if not isinstance(path, RemotePath) and path.is_dir():
        with contextlib.suppress(OSError), locks.held(path) as is_locked:
            if is_locked:
                for found in _local(path):
                    with contextlib.suppress(OSError):
                        found.delete()


def stale_files(folder: PathLike, *, stopped: bool = False) -> Iterator[Removable]:
    """One process. Files that killed writers have left in a folder, local or a URL; a local one is
    locked meanwhile.

    On an object store it is what no manifest names and no one has changed for a day, by the store's
    clock.

    Args:
        folder: of checkpoints.
        stopped: nothing saves there now, the caller knows: neither locks nor ages are asked.
    """
    path = path_of(folder)
    if isinstance(path, RemotePath):
        yield from _remote(path, stopped)
        return
    with locks.held(path) as is_locked:
        if is_locked or stopped:
            yield from _local(path, stopped)


def _local(folder: Path, stopped: bool = False) -> Iterator[Removable]:
    for path in sorted(folder.iterdir()):
        with contextlib.suppress(OSError):
            if is_partial(path.name) and (stopped or locks.is_free(path)):
                yield _at(path, "a save that did not end")
            elif is_lonely_digest(path):
                yield _at(path, "the digest of a file that is gone")
            elif path.is_dir() and not path.is_symlink():
                yield from (
                    _at(path / name, _UNNAMED)
                    for name in _unnamed(LocalFolder(path), os.listdir(path))
                )


def _at(path: Path, why: str) -> Removable:
    def delete() -> None:
        disk.remove_tree(path) if path.is_dir() and not path.is_symlink() else disk.unlink(path)

    return Removable(str(path), size_of(path), why, delete)


def size_of(path: Path) -> int:
    """Bytes of a local file, or of all files in a folder."""
    if path.is_dir() and not path.is_symlink():
        return sum(entry.stat().st_size for entry in path.rglob("*") if entry.is_file())
    return path.lstat().st_size


def _unnamed(folder: LocalFolder | RemoteFolder, names: list[str]) -> list[str]:
    """Files of the form of a checkpoint's in a folder with a manifest that doesn't name them."""
    own = [name for name in names if manifest.OWN_FILE.fullmatch(name)]
    if not own:
        return []
    try:
        named = manifest.from_bytes(folder.read_manifest(), folder.name_of(manifest.NAME)).files
    except (FileNotFoundError, CheckpointCorruptedError, NotAFileError):
        return []  # it may be all that is left of a checkpoint
    return sorted(name for name in own if name not in named)


def _remote(path: RemotePath, stopped: bool) -> Iterator[Removable]:
    path.filesystem.invalidate_cache()
    listed = path.filesystem.ls(path.name, detail=True)
    folders = [
        RemoteFolder(_within(path, entry)) for entry in listed if entry["type"] == "directory"
    ]
    contents = [(folder, folder.entries()) for folder in folders]
    files = [entry for entry in listed if entry["type"] == "file"]
    # The newest change anywhere in here is the store's own time, or nearly: this machine's clock
    # has no say.
    times = [time for _, entries in contents for *_, time in entries]
    now = max([*times, *map(modified_at, files)], default=0.0)

    def is_stale(changed: float) -> bool:
        return stopped or 0 < changed < now - STALE_S

    for entry in files:
        if entry["name"].endswith(".partial") and is_stale(modified_at(entry)):
            place, size_bytes = _within(path, entry), int(entry.get("size") or 0)
            yield Removable(
                place.url, size_bytes, "a save that did not end", partial(place.delete, place.name)
            )
    for folder, entries in contents:
        sizes = {name: size for name, size, changed in entries if is_stale(changed)}
        names = list(sizes)
        if all(manifest.OWN_FILE.fullmatch(name) for name, *_ in entries):
            unnamed, why = (
                names,
                "a file of a save that did not end, in a folder without a manifest",
            )
        else:
            unnamed, why = _unnamed(folder, names), _UNNAMED
        for name in unnamed:
            delete = partial(folder.path.delete, f"{folder.folder}/{name}")
            yield Removable(folder.name_of(name), sizes[name], why, delete)


def _within(path: RemotePath, entry: dict[str, object]) -> RemotePath:
    name = str(entry["name"]).rstrip("/")
    return RemotePath(path.filesystem, name, f"{path.url.rstrip('/')}/{name.rpartition('/')[2]}")
