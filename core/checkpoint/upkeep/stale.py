"""Files that writers which were killed have left in a folder of checkpoints."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from core.checkpoint.folder.left_over import is_lonely_digest
from core.checkpoint.folder.local_folder import LocalFolder
from core.checkpoint.folder.remote_folder import STALE_S, RemoteFolder
from core.checkpoint.format import manifest
from core.checkpoint.storage import disk, locks
from core.checkpoint.storage.disk import is_partial
from core.checkpoint.storage.place import LocalPlace, RemotePlace, place_of
from core.contract.errors import CheckpointCorruptedError
from core.text.plain_file import NotAFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.checkpoint.folder.folder import Folder
    from core.checkpoint.storage.place import PlaceEntry
    from core.contract.checkpoint_io import PathLike

_UNNAMED = "a file of a save that did not end, which the manifest doesn't name"

_UNFINISHED = "a file of a save that did not end, in a folder without a manifest"


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
    place = place_of(folder)
    if isinstance(place, LocalPlace) and place.path.is_dir():
        with contextlib.suppress(OSError), locks.held(place.path) as is_locked:
            if is_locked:
                for found in _local(place.path):
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
    place = place_of(folder)
    if isinstance(place, RemotePlace):
        yield from _remote(place, stopped)
        return
    with locks.held(place.path) as is_locked:
        if is_locked or stopped:
            yield from _local(place.path, stopped)


def _local(folder: Path, stopped: bool = False) -> Iterator[Removable]:
    for path in sorted(folder.iterdir()):
        with contextlib.suppress(OSError):
            if is_partial(path.name) and (stopped or locks.is_free(path)):
                yield _at(path, "a save that did not end")
            elif is_lonely_digest(path):
                yield _at(path, "the digest of a file that is gone")
            elif path.is_dir() and not path.is_symlink():
                for name in _unnamed(LocalFolder(path), os.listdir(path)):
                    yield _at(path / name, _UNNAMED)


def _at(path: Path, why: str) -> Removable:
    size_bytes = path.lstat().st_size
    if path.is_dir() and not path.is_symlink():
        size_bytes = sum(entry.stat().st_size for entry in path.rglob("*") if entry.is_file())
    return Removable(str(path), size_bytes, why, partial(disk.remove_tree, path))


def _unnamed(folder: Folder, names: list[str]) -> list[str]:
    """Files of the form of a checkpoint's in a folder with a manifest that doesn't name them."""
    own = [name for name in names if manifest.OWN_FILE.fullmatch(name)]
    if not own:
        return []
    try:
        named = manifest.from_bytes(folder.read_manifest(), str(folder)).files
    except (FileNotFoundError, CheckpointCorruptedError, NotAFileError):
        return []  # it may be all that is left of a checkpoint
    return sorted(name for name in own if name not in named)


def _remote(place: RemotePlace, stopped: bool) -> Iterator[Removable]:
    listed = place.entries()
    contents = {
        entry.name: place.child(entry.name).entries() for entry in listed if entry.is_folder
    }
    files = [entry for entry in listed if not entry.is_folder]
    # The newest change anywhere in here is the store's own time, or nearly: this machine's clock
    # has no say.
    now = max((entry.changed_s for entry in sum(contents.values(), files)), default=0.0)

    def removable(entry: PlaceEntry, place: RemotePlace, why: str) -> Iterator[Removable]:
        if stopped or 0 < entry.changed_s < now - STALE_S:
            yield Removable(str(place), entry.size_bytes, why, place.delete)

    for entry in files:
        if entry.name.endswith(".partial"):
            yield from removable(entry, place.child(entry.name), "a save that did not end")
    for name, entries in contents.items():
        folder = RemoteFolder(place.child(name))
        names = [entry.name for entry in entries]
        if all(map(manifest.OWN_FILE.fullmatch, names)):
            unnamed = names
            why = _UNFINISHED
        else:
            unnamed = _unnamed(folder, names)
            why = _UNNAMED
        for entry in entries:
            if entry.name in unnamed:
                yield from removable(entry, folder.place.child(entry.name), why)
