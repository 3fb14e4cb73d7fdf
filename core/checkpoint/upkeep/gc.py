"""Old checkpoints that may go: never the last one that is known to be whole."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from core.checkpoint.any_form import formats
from core.checkpoint.upkeep.listing import list_checkpoints
from core.checkpoint.upkeep.stale import Removable
from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from core.checkpoint.upkeep.listing import Listed
    from core.contract.checkpoint_io import PathLike


def collectable(folder: PathLike, keep: int) -> list[Removable]:
    """One process. All checkpoints of a folder but the `keep` newest that verify, and those that links lead to.

    Every byte of those that are kept is read; none is collectable unless so many verify, beside those of links.
    """
    found = list_checkpoints(folder)
    linked = {os.path.realpath(listed.path) for listed in found if listed.state == "link"}
    num_kept, doomed = 0, []
    for listed in found:
        if listed.state == "link" or os.path.realpath(listed.path) in linked:
            continue
        if num_kept < keep and _verifies(listed):
            num_kept += 1
        else:
            why = f"older than the {keep} newest that verify" if num_kept >= keep else "damaged"
            doomed.append(_doomed(listed, why))
    return doomed if num_kept >= keep else []


def _verifies(listed: Listed) -> bool:
    if not listed.is_whole:
        return False
    try:
        formats.verify_checkpoint(listed.path)
    except CheckpointError:
        return False
    return True


def _doomed(listed: Listed, why: str) -> Removable:
    return Removable(listed.path, listed.size_bytes, why, lambda: formats.remove(listed.path))
