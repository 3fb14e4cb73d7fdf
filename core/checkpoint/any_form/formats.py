"""Reading and removing a checkpoint of whichever form is at a path."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeVar

from core.checkpoint.file import safetensors_file, single_file, torch_file
from core.checkpoint.file.location import location_of
from core.checkpoint.folder.folder import folder_of
from core.checkpoint.folder.reader import FolderReader, Plan
from core.checkpoint.format import manifest
from core.checkpoint.storage import messages
from core.checkpoint.storage.place import names_in
from core.contract.errors import CheckpointCorruptedError, CheckpointError
from core.text.plain_file import NotAFileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.checkpoint.folder.folder import Folder
    from core.contract.checkpoint_io import PathLike

T = TypeVar("T")


def load_checkpoint(
    path: PathLike, targets: object = None, share: tuple[int, int] = (0, 1)
) -> dict[str, Any]:
    """This rank. The state of a folder or a file; `targets` are filled from a folder.

    Args:
        path: a local path or a URL.
        targets: tensors at their places in nested dicts and lists.
        share: number of this process, and of all that load together: where its parts are likely to
            be.

    Raises:
        CheckpointNotFoundError: nothing is there.
        CheckpointCorruptedError: damaged, incomplete, or not a checkpoint; the file is named.
        CheckpointError: it can't be read. `overwritten` is True if targets hold something of it by
            then.
    """
    has_targets, fill = prepare_load(path, targets, share)
    with messages.overwriting(has_targets):
        return fill()


def prepare_load(
    path: PathLike,
    targets: object = None,
    share: tuple[int, int] = (0, 1),
    *,
    verifies_first: bool = False,
    known: FolderReader | None = None,
) -> tuple[bool, Callable[[], dict[str, Any]]]:
    """This rank. Find out whether a checkpoint can be loaded into `targets`, which are left alone.

    Args:
        path: of a folder or a file.
        targets: as for `load_checkpoint`.
        share: likewise.
        verifies_first: read and verify what is needed already now, besides when it is loaded.
        known: the folder, if it was opened before. What has been replaced meanwhile is opened
            again.

    Returns:
        Whether tensors that the caller has given are filled, and a function that fills them and
        gives the state.

    Raises:
        CheckpointError: as `load_checkpoint`.
    """
    folder = open_folder(path)
    if folder.is_file():
        state = single_file.read(path, _parse)
        return False, lambda: state

    def prepare(reader: FolderReader) -> tuple[FolderReader, Plan]:
        plan = reader.plan(targets)
        if verifies_first:
            plan.verify()
        return reader, plan

    if known and (str(known.folder) != str(folder) or known.raw_manifest != _read_manifest(folder)):
        known = None
    first, plan = with_folder(folder, prepare, share, first=known)

    def fill(reader: FolderReader) -> Any:
        return (plan if reader is first else reader.plan(targets)).fill()

    return plan.has_targets, lambda: with_folder(folder, fill, share, first=first)


def describe(
    path: PathLike, share: tuple[int, int] = (0, 1)
) -> tuple[dict[str, Any], FolderReader] | None:
    """This rank. The state of a folder, with descriptions in the place of tensors, and the folder;
    None for a file.
    """
    folder = open_folder(path)
    if folder.is_file():
        return None
    return with_folder(folder, lambda reader: (reader.describe(), reader), share)


def verify_checkpoint(
    path: PathLike,
    progress: Callable[[int, int], None] | None = None,
    share: tuple[int, int] | None = None,
) -> None:
    """This rank. Read every byte and compare its digest.

    Args:
        path: a local path or a URL.
        progress: called with the bytes that have been verified and those of all, for a folder again
            and again.
        share: number of this process, and of all that verify together, each the files of other
            ranks that have written; a file is the first one's.

    Raises:
        CheckpointError: as `load_checkpoint`.
    """
    folder = open_folder(path)
    if not folder.is_file():
        with_folder(folder, lambda reader: reader.verify(progress, share), share or (0, 1))
    elif not share or share[0] == 0:
        single_file.read(path, _parse, warns=True)


def remove(path: PathLike) -> None:
    """Rank 0. Delete a folder or a file, if it is there.

    Raises:
        CheckpointError: it can't be deleted.
    """
    try:
        folder = folder_of(path)
        found = location_of(path) if folder.is_file() else folder
        found.remove()
    except Exception as error:
        raise messages.cannot_delete(os.fspath(path), error) from error


def open_folder(path: PathLike) -> Folder:
    """The place that a path names.

    Raises:
        CheckpointError: nothing can be read there.
    """
    try:
        return folder_of(path)
    except Exception as error:
        raise messages.cannot_read(os.fspath(path), error) from error


def with_folder(
    folder: Folder,
    work: Callable[[FolderReader], T],
    share: tuple[int, int] = (0, 1),
    *,
    first: FolderReader | None = None,
) -> T:
    """Open a checkpoint folder and do something with it, again if another process replaces it
    meanwhile.

    Args:
        folder: of the checkpoint.
        work: is called with it, perhaps several times.
        share: of this process; see `FolderReader`.
        first: the folder, if it has been opened already.

    Raises:
        CheckpointNotFoundError: nothing is there.
        CheckpointCorruptedError: damaged, incomplete, or not a checkpoint; the file is named.
        CheckpointError: it can't be read.
    """
    while True:
        raw_manifest = first.raw_manifest if first else _read_manifest(folder)
        try:
            return work(first or FolderReader(folder, raw_manifest, share))
        except Exception as error:
            first = None
            # The files of an old manifest go when a new one is in place, so anything may fail then:
            # read the new one.
            if _read_manifest(folder) != raw_manifest:
                continue
            _raise_explained(folder, error)


def _raise_explained(folder: Folder, error: Exception) -> NoReturn:
    """Raise the error for a folder that can't be read."""
    path = str(folder)
    if isinstance(error, CheckpointError):
        raise error
    if isinstance(error, NotAFileError):
        raise CheckpointCorruptedError(f"{path!r} is damaged: {error}.") from error
    if isinstance(error, FileNotFoundError):
        name = os.path.basename(error.filename or str(error))
        raise CheckpointCorruptedError(
            f"{path!r} is incomplete: its file {name!r} is missing. Load an earlier checkpoint."
        ) from error
    raise messages.cannot_read(path, error) from error


def _read_manifest(folder: Folder) -> bytes:
    path = str(folder)
    try:
        return folder.read_manifest()
    except FileNotFoundError:
        names = names_in(folder.place) or []
        if not names and not os.path.isdir(path):
            raise messages.not_found(path, folder.place) from None
        where = f"{path!r} is a folder without {manifest.NAME}:"
        if any(map(manifest.OWN_FILE.fullmatch, names)):
            raise CheckpointCorruptedError(
                f"{where} a checkpoint that was never completed. Load an earlier checkpoint."
            ) from None
        from core.registry.checkpoint_readers import what_reads

        advice = what_reads(path, names) or "If something in it was meant, name that."
        raise CheckpointCorruptedError(
            f"{where} no checkpoint of core, and nothing of it was damaged. {advice}"
        ) from None
    except NotADirectoryError as error:
        raise CheckpointCorruptedError(f"{path!r} is neither a folder nor a file.") from error
    except Exception as error:
        _raise_explained(folder, error)


def _parse(file: BinaryIO, path: str) -> dict[str, object]:
    if path.endswith(safetensors_file.SUFFIX) or safetensors_file.begins(file):
        return safetensors_file.load(file, path)
    return torch_file.load(file, path)
