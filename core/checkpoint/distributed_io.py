"""A checkpoint in a folder, to which every rank writes its own part."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from core.checkpoint import formats, messages
from core.checkpoint.agreement import gather_results, on_rank_zero, together
from core.checkpoint.folder import folder_of
from core.checkpoint.manifest import Manifest
from core.checkpoint.part_writer import PartWriter
from core.contract.checkpoint_io import CheckpointIO
from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from core.checkpoint.folder import Folder
    from core.checkpoint.manifest import FileEntry
    from core.contract.checkpoint_io import Collectives, PathLike


class DistributedCheckpointIO(CheckpointIO):
    """A folder for each checkpoint, written and read by all ranks at once, at any number of them.

    Each rank writes its shards to a file of its own, one tensor after the other and without a copy, and works out by
    itself which they are. What has to be agreed on are one short message from each rank, and one to each. The manifest,
    written last, makes the folder a checkpoint: it exists whole or not at all, also when a process or the machine dies.

    Nothing that is read is executed: the state is JSON and plain bytes. Every byte has a digest, which is compared
    before the byte is used; a damaged file is named. Tensors that are not read into others are on memory that is mapped
    from the file, privately: writing to them changes nobody else's. Such a mapping doesn't outlive a file that another
    machine deletes on a network file system; copy what you keep.

    `path` may be a local path or a URL that fsspec knows, such as `s3://bucket/last.ckpt`. All ranks must reach it.
    """

    layout = "sharded"

    def save_checkpoint(self, state: dict[str, Any] | None, path: PathLike, *, collectives: Collectives) -> None:
        """Write `state` to `path`, replacing what is there.

        Args:
            state: nested dicts and lists of plain types, tensors and arrays, those of rank 0; and DTensors and
                `ShardedLeaf`s, of which each rank has its part.
            path: a local path or a URL that fsspec knows. Missing folders are made.
            collectives: the ranks that call this together.

        Raises:
            CheckpointError: it can't be written, or `state` holds something else; what was at `path` is untouched.
                Raised on all ranks.
        """
        assert state is not None, "every rank has its part of a state of layout 'sharded'"
        try:
            folder = folder_of(path)
            self._write(folder, state, collectives)
        except CheckpointError:
            raise
        except Exception as error:
            raise messages.cannot_write(os.fspath(path), error) from error

    def _write(self, folder: Folder, state: dict[str, Any], collectives: Collectives) -> None:
        part = together(collectives, lambda: PartWriter(state, collectives.rank))
        token = on_rank_zero(collectives, lambda: _explained(folder, folder.begin))
        committed = False
        try:
            with ExitStack() as stack:

                def write() -> tuple[dict[str, FileEntry], int]:
                    stack.enter_context(folder.stage(token))
                    return _explained(folder, lambda: part.write(folder, token)), part.num_written

                _, written = gather_results(collectives, write)
                on_rank_zero(
                    collectives, lambda: _explained(folder, lambda: _commit(folder, token, part, written, collectives))
                )
                committed = True
        finally:
            if collectives.rank == 0 and not committed:
                folder.discard(token)

    def load_checkpoint(
        self, path: PathLike, *, collectives: Collectives, state: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Read what was saved at `path`, also by another CheckpointIO of the core; tensors come back on the CPU.

        Args:
            path: a local path or a URL that fsspec knows.
            collectives: the ranks that call this together.
            state: tensors, DTensors and `ShardedLeaf`s to fill, at their places in nested dicts and lists; each rank
                reads what it needs for them. What has no place there is read whole.

        Returns:
            The state, on all ranks.

        Raises:
            CheckpointNotFoundError: nothing is there. Like the others raised on all ranks, if on any.
            CheckpointCorruptedError: damaged, incomplete, or not a checkpoint; the file is named.
            CheckpointError: it can't be read, or a tensor to fill has another shape.
        """
        return together(collectives, lambda: formats.load_checkpoint(path, state))

    def describe_checkpoint(self, path: PathLike, *, collectives: Collectives) -> dict[str, Any] | None:
        """All ranks. What was saved at `path`, with a `TensorDescription` in the place of each tensor.

        Returns:
            None for a checkpoint in one file.

        Raises:
            As `load_checkpoint`.
        """
        return together(collectives, lambda: formats.describe(path))

    def remove_checkpoint(self, path: PathLike, *, collectives: Collectives) -> None:
        """Delete the checkpoint at `path`, whole. Nothing happens if it is not there.

        Raises:
            CheckpointError: it can't be deleted, or a folder is there that isn't a checkpoint. Raised on all ranks.
        """
        on_rank_zero(collectives, lambda: formats.remove(path))

    def exists(self, path: PathLike) -> bool:
        """Rank 0. Whether a complete checkpoint is at `path`."""
        return folder_of(path).exists()

    def verify_checkpoint(self, path: PathLike) -> None:
        """Rank 0. Read every byte of the checkpoint at `path` and compare its digest.

        Raises:
            CheckpointNotFoundError: nothing is there.
            CheckpointCorruptedError: it is damaged; the file is named.
        """
        formats.verify_checkpoint(path)


def _commit(
    folder: Folder,
    token: str,
    part: PartWriter,
    written: list[tuple[dict[str, FileEntry], int]],
    collectives: Collectives,
) -> None:
    """Rank 0. Check that nothing is missing, and make it a checkpoint."""
    if (total := sum(number for _, number in written)) != part.num_elements:
        raise CheckpointError(
            f"The ranks have {total} elements of tensors to save, and the state has {part.num_elements}. The chunks of "
            "all ranks must cover each tensor, and each of its elements once."
        )
    files = {name: entry for entries, _ in written for name, entry in entries.items()}
    content = Manifest(files, collectives.size, dict(collectives.writer)).to_bytes()
    folder.commit(token, content, files)


def _explained(folder: Folder, work: Any) -> Any:
    try:
        return work()
    except Exception as error:
        raise messages.cannot_write(str(folder), error) from error
