"""The methods of the core's CheckpointIOs that work on a checkpoint of any form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.checkpoint.joint.agreement import on_rank_zero
from core.contract.checkpoint_io import CheckpointIO

# Every run has one of these, and not every run saves or loads: what only that needs is imported in
# the methods.
if TYPE_CHECKING:
    from core.contract.checkpoint_io import Collectives, PathLike


class AnyFormCheckpointIO(CheckpointIO):
    """The base of the forms that the core knows, a folder and a file: each finds, verifies and
    deletes the other.
    """

    def remove_checkpoint(self, path: PathLike, *, collectives: Collectives) -> None:
        """Delete the checkpoint at `path`, whole, and its digest. Nothing happens if it is not
        there.

        Raises:
            CheckpointError: it can't be deleted, or a folder is there that isn't a checkpoint.
                Raised on all ranks.
        """
        from core.checkpoint.any_form import formats

        on_rank_zero(collectives, lambda: formats.remove(path))

    def exists(self, path: PathLike) -> bool:
        """Rank 0. True if a complete checkpoint is at `path`, in whichever form."""
        from core.checkpoint.folder.folder import folder_of

        return folder_of(path).exists()

    def verify_checkpoint(self, path: PathLike) -> None:
        """Rank 0. Read every byte of the checkpoint at `path` and compare its digest.

        Raises:
            CheckpointNotFoundError: nothing is there.
            CheckpointCorruptedError: it is damaged; the file is named.
        """
        from core.checkpoint.any_form import formats

        formats.verify_checkpoint(path)
