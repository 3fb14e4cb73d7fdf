"""The kinds of a folder without a manifest: a save that didn't end, or the work of another program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.checkpoint.format import manifest
from core.checkpoint.storage import messages
from core.contract.errors import CheckpointCorruptedError
from core.text.printable import printable

if TYPE_CHECKING:
    from collections.abc import Collection

_MOST_NAMES = 5


def unfinished_or_foreign(path: str, names: Collection[str]) -> CheckpointCorruptedError:
    """The error for a folder that can't be read as a checkpoint, by what lies in it."""
    from core.registry.checkpoint_readers import what_reads

    where = f"{path!r} is a folder without {manifest.NAME}:"
    if any(manifest.OWN_FILE.fullmatch(name) for name in names):
        return CheckpointCorruptedError(f"{where} a checkpoint that was never completed. Load an earlier checkpoint.")
    return CheckpointCorruptedError(
        f"{where} no checkpoint of core, and nothing of it was damaged. {what_reads(path, names) or _in_it(names)}"
    )


def _in_it(names: Collection[str]) -> str:
    """A sentence on what may have been meant."""
    weights = sorted(name for name in names if name.endswith(messages.FILE_SUFFIXES))
    meant = weights or sorted(name for name in names if not name.startswith("."))
    if not meant:
        return "It is empty."
    shown = ", ".join(map(printable, meant[:_MOST_NAMES]))
    return f"If something in it was meant, name that: {shown}{', ...' if len(meant) > _MOST_NAMES else ''}"
