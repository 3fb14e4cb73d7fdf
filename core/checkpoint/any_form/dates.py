"""The times of checkpoints in a folder, of any form; each save is newer than what lies beside
it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from core.checkpoint.folder.folder import folder_at
from core.checkpoint.format import manifest
from core.checkpoint.storage.messages import FILE_SUFFIXES
from core.checkpoint.storage.place import LocalPlace, place_of
from core.contract.errors import CheckpointCorruptedError
from core.text.plain_file import NotAFileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.checkpoint.storage.place import Place
    from core.contract.checkpoint_io import PathLike


def look_beside(path: PathLike) -> None:
    """One process, before a save. Note when what lies beside it was saved, once a folder, so that
    the save is newer.

    What can't be read counts for nothing: it is no reason not to save.
    """
    place = place_of(path)
    folder = str(place.parent)
    if isinstance(place, LocalPlace):
        folder = str(place.path.absolute().parent)
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
    place = place_of(folder)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in place.entries():
            child = place.child(entry.name)
            if entry.name.startswith(".") or not entry.name.endswith(suffix):
                continue
            if entry.is_folder:
                yield _saved_at(child), entry.changed_s, str(child)
            elif suffix or entry.name.endswith(FILE_SUFFIXES):
                if isinstance(place, LocalPlace):  # a store's clock is its own
                    manifest.note_time(int(entry.changed_s * 1e9))
                yield entry.changed_s, 0.0, str(child)


def _saved_at(place: Place) -> float:
    try:
        found = manifest.from_bytes(folder_at(place).read_manifest(), str(place))
    except FileNotFoundError:
        return 0.0  # some other folder, or a save that didn't end
    except (CheckpointCorruptedError, NotAFileError):
        return float("inf")
    manifest.note_time(found.saved_at_ns)
    return found.saved_at_ns / 1e9
