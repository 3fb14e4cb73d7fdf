"""The states that runs keep in memory, on the disk after a run has given up."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from core.cli import say
from core_neighbour import is_own_folder, kept_folders, memory_folder
from core_resilience.in_place.token import VARIABLE, own_token, prove

_FOLDER = Path(".core-go-on")


def copy_to_disk(run_id: str) -> Path | None:
    """Copy the states of a run from memory; None if there are none.

    Raises:
        OSError: they can't be written, or another user writes in the folder.
        LaunchError: there is no token.
    """
    folders = kept_folders(run_id)
    if not folders:
        return None
    _FOLDER.mkdir(mode=0o700, exist_ok=True)
    if not is_own_folder(_FOLDER):
        raise PermissionError(
            f"{_FOLDER} isn't a folder of this user's in which nobody else writes; delete it"
        )
    target = _disk_folder(run_id)
    partial = target.with_name(f"partial-{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    for folder in folders:
        shutil.copytree(folder, partial / folder.name)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return target


def copy_to_memory(run_id: str) -> None:
    """Copy back what isn't in memory any more: files of this user's with this run's token, and no
    others.
    """
    others = list(_FOLDER.glob(f"{run_id}*"))
    if not others:
        return
    source = _disk_folder(run_id)
    if _is_ours(source):
        others.remove(source)
        for folder in source.iterdir():
            if not os.path.lexists(memory_folder() / folder.name):
                shutil.copytree(folder, memory_folder() / folder.name)
    if others:
        say(
            f"core go-on: {others[0]} isn't read: expected a folder that this user's core go-on "
            f"has made, and that has the run's token. If it is yours, set {VARIABLE} to the one of "
            "that run; else delete it.",
            err=True,
        )


def remove_from_disk(run_id: str) -> None:
    """Remove what a run that has come to its end doesn't need."""
    if not _FOLDER.is_dir():
        return
    folder = _disk_folder(run_id)
    if _is_ours(folder):
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # other runs have theirs there
            _FOLDER.rmdir()


def _is_ours(folder: Path) -> bool:
    return is_own_folder(_FOLDER) and is_own_folder(folder)


def _disk_folder(run_id: str) -> Path:
    """The folder on the disk for what a run has kept in memory. Without the token nobody can know
    its name.
    """
    return _FOLDER / f"{run_id}-{prove(own_token(), 'states', run_id)[:32]}"
