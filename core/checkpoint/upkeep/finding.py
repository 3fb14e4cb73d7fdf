"""Finds the newest checkpoint to go on from, and old ones that may go: never the last one that is
known to be whole.
"""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from core.checkpoint.any_form import formats
from core.checkpoint.any_form.dates import dated
from core.checkpoint.upkeep.listing import list_checkpoints
from core.checkpoint.upkeep.stale import Removable
from core.contract.errors import CheckpointCorruptedError, CheckpointError

if TYPE_CHECKING:
    from core.contract.checkpoint_io import CheckpointIO, PathLike


def newest_valid(
    *folders: PathLike,
    first: PathLike | None = None,
    storage: CheckpointIO | None = None,
    suffix: str | tuple[str, ...] = "",
) -> str | None:
    """One rank. The newest checkpoint in the folders that verifies; a warning names each newer one
    that doesn't.

    A checkpoint that is a folder is as old as its manifest says, which copying doesn't change; any
    other is as old as its last change, which a save sets. Each save is later than all that lay
    beside it when its process first saved there, and than all that the process has found or loaded,
    also if the clock was set back.

    Args:
        folders: local paths or URLs; those that don't exist hold nothing.
        first: the checkpoint that the user meant, tried before the others.
        storage: verifies; None for the core's own, which takes checkpoints in any of its forms.
        suffix: of the names to look at, or several.

    Returns:
        Its path; None if there is none.
    """
    # A folder may be named twice.
    candidates = sorted(
        {found for folder in folders for found in dated(os.path.expanduser(folder), suffix)}
    )
    paths = [path for *_, path in reversed(candidates)]
    if first is not None:
        paths = [os.fspath(first), *(path for path in paths if path != os.fspath(first))]
    return next((path for path in paths if _is_whole(path, storage)), None)


def _is_whole(path: str, storage: CheckpointIO | None) -> bool:
    if storage is not None and not storage.exists(path):
        return False
    try:
        (storage or formats).verify_checkpoint(path)
    except CheckpointCorruptedError as error:
        warnings.warn(
            f"The search passes over what is no whole checkpoint: {error} Looking for an older "
            "one.",
            stacklevel=4,
        )
        return False
    except FileNotFoundError:
        return False
    return True


def collectable(folder: PathLike, keep: int) -> list[Removable]:
    """One process. All checkpoints of a folder but the `keep` newest that verify, and those that
    links lead to.

    Every byte of those that are kept is read; none is collectable unless so many verify, beside
    those of links.
    """
    found = list_checkpoints(folder)
    linked = {os.path.realpath(listed.path) for listed in found if listed.state == "link"}
    num_kept, removable = 0, []
    for listed in found:
        if listed.state == "link" or os.path.realpath(listed.path) in linked:
            continue
        if num_kept < keep and listed.state == "complete":
            with suppress(CheckpointError):
                formats.verify_checkpoint(listed.path)
                num_kept += 1
                continue
        why = "damaged"
        if num_kept >= keep:
            why = f"older than the {keep} newest that verify"
        delete = partial(formats.remove, listed.path)
        removable.append(Removable(listed.path, listed.size_bytes, why, delete))
    if num_kept < keep:
        return []
    return removable
