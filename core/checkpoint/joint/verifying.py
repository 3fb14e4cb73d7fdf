"""All ranks read one checkpoint back together, each what it wrote."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from core.checkpoint.any_form import formats
from core.checkpoint.storage import messages
from core.contract.errors import CheckpointCorruptedError, CheckpointError

if TYPE_CHECKING:
    from core.contract.checkpoint_io import Collectives, PathLike


def damage_of(path: PathLike, collectives: Collectives) -> str | None:
    """All ranks. The damage of a checkpoint, in words; None if every byte has its digest.

    Args:
        path: a local path or a URL.
        collectives: the ranks that call this together.
    """
    found = _found(path, (collectives.rank, collectives.size))
    gathered = collectives.gather_objects(
        found and (isinstance(found, CheckpointCorruptedError), str(found))
    )
    failed = [(rank, *report) for rank, report in enumerate(gathered or []) if report]
    damage: str | None = None
    if failed:
        rank, is_damaged, text = max(failed, key=lambda report: report[1])
        damage = f"On rank {rank}: {text}" if rank else text
        # A network file system may hide for a minute what another machine has put there: rank 0
        # has, and reads all.
        if rank and not is_damaged:
            whole = _found(path, None)
            damage = None if whole is None else str(whole)
    return collectives.broadcast_object(damage)  # type: ignore[no-any-return]


def _found(path: PathLike, share: tuple[int, int] | None) -> CheckpointError | None:
    try:
        formats.verify_checkpoint(path, share=share)
    except CheckpointError as error:
        return error
    except Exception as error:  # no rank may leave the others waiting
        return messages.cannot_read(os.fspath(path), error)
    return None
