"""The remains of killed writers in a folder on a local disk."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from core.checkpoint.format import digest
from core.checkpoint.storage import disk, locks

if TYPE_CHECKING:
    from pathlib import Path


def sweep(folder: Path) -> None:
    """Delete what writers that died have left in a folder that is locked; what a living one holds a
    lock on stays.
    """
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if (disk.is_partial(path.name) and locks.is_free(path)) or is_lonely_digest(path):
                disk.remove_tree(path)


def is_lonely_digest(path: Path) -> bool:
    """True if it is a digest whose file is gone. While the folder is locked, no writer is between
    the two.
    """
    owner = path.name[1:].removesuffix(digest.SUFFIX)
    if not owner or digest.name_of(owner) != path.name or os.path.lexists(path.with_name(owner)):
        return False
    return (
        path.is_file()
        and path.stat().st_size <= digest.MAX_BYTES
        and bool(digest.from_text(path.read_bytes()))
    )
