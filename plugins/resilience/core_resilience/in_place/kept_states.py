"""The states that runs keep in memory, on the disk after a run has given up."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

_FOLDER = ".core-go-on"


def disk_folder(run_id: str) -> Path:
    """The folder on the disk for what a run has kept in memory."""
    return Path(_FOLDER) / run_id


def copy_to_disk(run_id: str) -> Path | None:
    """Copy the states of a run from memory; None if there are none."""
    from core_neighbour import kept_folders

    folders, target = kept_folders(run_id), disk_folder(run_id)
    if not folders:
        return None
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for folder in folders:
        shutil.copytree(folder, partial / folder.name)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return target


def copy_to_memory(run_id: str) -> None:
    """Copy back what isn't in memory any more."""
    if not (source := disk_folder(run_id)).is_dir():
        return
    from core_neighbour import kept_folders, memory_folder

    there = {each.name for each in kept_folders(run_id)}
    for folder in source.iterdir():
        if folder.name not in there:
            shutil.copytree(folder, memory_folder() / folder.name)


def remove_from_disk(run_id: str) -> None:
    """Remove what a run that has come to its end doesn't need."""
    shutil.rmtree(disk_folder(run_id), ignore_errors=True)
    with contextlib.suppress(OSError):  # other runs have theirs there
        Path(_FOLDER).rmdir()
