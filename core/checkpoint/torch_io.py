"""A checkpoint in one file, as torch.save writes it, with its digest in a second one beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.checkpoint import formats, torch_file
from core.checkpoint.agreement import on_rank_zero, together
from core.checkpoint.folder import folder_of
from core.contract.checkpoint_io import CheckpointIO

if TYPE_CHECKING:
    from core.contract.checkpoint_io import Collectives, PathLike


class TorchCheckpointIO(CheckpointIO):
    """One file for the whole state, which `torch.load(path, weights_only=True)` reads as well.

    Rank 0 writes, all ranks read. Beside `last.ckpt` stands `last.ckpt.digest`; every load compares the two, and a
    damaged file is named. Move or copy both. A file without a digest, from elsewhere, is loaded with a warning.

    `path` may be a local path or a URL that fsspec knows, such as `s3://bucket/last.ckpt`. On a local file system a
    checkpoint is replaced at once, also when the process or the machine dies; an object store does as well as its own
    move.

    The tensors of a loaded state are in memory and not mapped from the file: they outlive it, and another process that
    replaces it on a shared file system can't take this one down.
    """

    layout = "full"

    def save_checkpoint(self, state: dict[str, Any] | None, path: PathLike, *, collectives: Collectives) -> None:
        """Write `state` to `path`, replacing what is there.

        Args:
            state: on rank 0; nested dicts and lists of plain types, tensors and arrays.
            path: a local path or a URL that fsspec knows. Missing folders are made.
            collectives: the ranks that call this together.

        Raises:
            CheckpointError: it can't be written, or `state` holds something else; what was at `path` is untouched.
                Raised on all ranks.
        """

        def write() -> None:
            assert state is not None, "rank 0 has the state of layout 'full'"
            torch_file.write(state, path)

        on_rank_zero(collectives, write)

    def load_checkpoint(
        self, path: PathLike, *, collectives: Collectives, state: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Read what was saved at `path`, also by another CheckpointIO of the core; tensors come back on the CPU.

        Args:
            path: a local path or a URL that fsspec knows.
            collectives: the ranks that call this together.
            state: not used by layout `full`.

        Returns:
            The state, on all ranks.

        Raises:
            CheckpointNotFoundError: nothing is there. Like the others raised on all ranks, if on any.
            CheckpointCorruptedError: damaged, or not a checkpoint; the file is named.
            CheckpointError: it can't be read.
        """
        return together(collectives, lambda: formats.load_checkpoint(path))

    def remove_checkpoint(self, path: PathLike, *, collectives: Collectives) -> None:
        """Delete the checkpoint at `path` and its digest. Nothing happens if they are not there.

        Raises:
            CheckpointError: it can't be deleted. Raised on all ranks.
        """
        on_rank_zero(collectives, lambda: formats.remove(path))

    def exists(self, path: PathLike) -> bool:
        """Rank 0. Whether a checkpoint is at `path`, in whichever form."""
        return folder_of(path).exists()

    def verify_checkpoint(self, path: PathLike) -> None:
        """Rank 0. Read every byte of the checkpoint at `path` and compare its digest.

        Raises:
            CheckpointNotFoundError: nothing is there.
            CheckpointCorruptedError: it is damaged; the file is named.
        """
        formats.verify_checkpoint(path)
