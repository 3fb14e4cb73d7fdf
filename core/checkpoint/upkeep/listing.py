"""The checkpoints in a folder: how old, how large, of which step, and whole or not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.checkpoint.any_form import formats
from core.checkpoint.folder.folder import folder_at
from core.checkpoint.format import manifest
from core.checkpoint.format.verified_file import wrong_size
from core.checkpoint.storage.messages import FILE_SUFFIXES
from core.checkpoint.storage.place import names_in, place_of
from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.checkpoint.folder.reader import FolderReader
    from core.checkpoint.storage.place import Place, PlaceEntry
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
    found = [_listed(place, verify, progress) for place in _candidates(folder)]
    return sorted(found, key=lambda listed: (-listed.saved_at_s, listed.path))


def _candidates(folder: PathLike) -> Iterator[Place]:
    place = place_of(folder)
    if folder_at(place).exists():
        yield place
        return
    for entry in sorted(place.entries()):
        child = place.child(entry.name)
        if not entry.name.startswith(".") and _is_one(child, entry):
            yield child


def _is_one(place: Place, entry: PlaceEntry) -> bool:
    path = str(place)
    is_link = os.path.islink(path)
    if not entry.is_folder and (not is_link or os.path.exists(path)):
        return entry.name.endswith(FILE_SUFFIXES)
    if is_link or folder_at(place).exists():
        return True
    names = names_in(place) or [""]
    return all(map(manifest.OWN_FILE.fullmatch, names))


def _listed(place: Place, verify: bool, progress: Callable[[int, int], None] | None) -> Listed:
    path = str(place)
    if os.path.islink(path):
        leads_to = f"leads to {os.readlink(path)}"
        return Listed(path, os.lstat(path).st_mtime, 0, None, "link", leads_to)
    folder = folder_at(place)
    size_bytes, saved_at_s, step, state, detail = 0, 0.0, None, "complete", ""
    try:
        if folder.is_file():
            beside = {entry.name: entry for entry in place.parent.entries()}
            _, _, size_bytes, saved_at_s = beside[place.name]
        else:
            size_bytes = sum(_sizes(place).values())
            saved_at_s, step = formats.with_folder(folder, lambda reader: _facts(place, reader))
        if verify:
            formats.verify_checkpoint(path, progress)
            state = "verified"
    except CheckpointError as error:
        state = "damaged"
        detail = str(error)
    return Listed(path, saved_at_s, size_bytes, step, state, detail)


def _sizes(place: Place) -> dict[str, int]:
    return {entry.name: entry.size_bytes for entry in place.entries()}


def _facts(place: Place, reader: FolderReader) -> tuple[float, int | None]:
    """The time at which it was saved, and the step, once all of its files have been found."""
    # Now, and so after the manifest was read: a save may have replaced both before.
    sizes = _sizes(place)
    for name, entry in reader.manifest.files.items():
        if name not in sizes:
            raise FileNotFoundError(2, "is missing", name)
        if sizes[name] != entry.size_bytes:
            raise wrong_size(reader.folder.name_of(name), entry.size_bytes)
    saved_at_s = reader.manifest.saved_at_ns / 1e9
    state = reader.describe()
    for values in (state.get("progress"), state):
        for name in ("global_step", "step"):
            if isinstance(values, dict) and type(values.get(name)) is int:
                return saved_at_s, int(values[name])
    return saved_at_s, None
