"""A checkpoint in a folder, to which every rank writes its own part."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from core.checkpoint.any_form_io import AnyFormCheckpointIO
from core.checkpoint.joint.agreement import together
from core.contract.errors import CheckpointError

# What only saving or loading needs is imported in the methods.
if TYPE_CHECKING:
    from core.checkpoint.folder.reader import FolderReader
    from core.contract.checkpoint_io import Collectives, PathLike


class DistributedCheckpointIO(AnyFormCheckpointIO):
    """A folder for each checkpoint, written and read by all ranks at once, at any number of them.

    Each rank writes its shards to a file of its own, one tensor after the other and without a copy,
    and works out by itself which they are. What has to be agreed on are one short message from each
    rank, and one to each. The manifest, written last, makes the folder a checkpoint: it exists
    whole or not at all, also when a process or the machine dies.

    Nothing that is read is executed: the state is JSON and plain bytes. Every byte has a digest,
    which is compared before the byte counts; a damaged file is named. Tensors that are not read
    into others are on memory that is mapped from the file, privately: writing to them changes no
    other copy. Such a mapping doesn't outlive a file that another machine deletes on a network file
    system; copy what you keep.

    `path` may be a local path or a URL that fsspec knows, such as `s3://bucket/last.ckpt`. All
    ranks must reach it.
    """

    layout = "sharded"
    verifies_first = False  # for subclasses with an `__init__` of their own
    _described: FolderReader | None = None
    """The checkpoint that was described last, until it is loaded: it needn't be opened again."""

    def __init__(self, *, verifies_first: bool = False) -> None:
        """Make it.

        Args:
            verifies_first: read everything twice where it is loaded into something that exists:
                first to verify it, so that a damaged checkpoint leaves what it was to be loaded
                into as it was, on all ranks. By default it is read once, and verified meanwhile.
        """
        self.verifies_first = verifies_first

    def save_checkpoint(
        self, state: dict[str, Any] | None, path: PathLike, *, collectives: Collectives
    ) -> None:
        """Write `state` to `path`, replacing what is there.

        Args:
            state: nested dicts and lists of plain types, tensors and arrays, those of rank 0; and
                DTensors and `ShardedLeaf`s, of which each rank has its part.
            path: a local path or a URL that fsspec knows. Missing folders are made.
            collectives: the ranks that call this together.

        Raises:
            CheckpointError: it can't be written, or `state` holds something else; what was at
                `path` is untouched. Raised on all ranks.
        """
        assert state is not None, "every rank has its part of a state of layout 'sharded'"
        from core.checkpoint.folder.folder import folder_of
        from core.checkpoint.joint import writing
        from core.checkpoint.storage import messages

        try:
            writing.write(folder_of(path), state, collectives)
        except CheckpointError:
            raise
        except Exception as error:
            raise messages.cannot_write(os.fspath(path), error) from error

    def load_checkpoint(
        self, path: PathLike, *, collectives: Collectives, state: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Read what was saved at `path`, also by another CheckpointIO of the core; tensors come
        back on the CPU.

        Args:
            path: a local path or a URL that fsspec knows.
            collectives: the ranks that call this together.
            state: tensors, DTensors and `ShardedLeaf`s to fill, at their places in nested dicts and
                lists; each rank reads what it needs for them. What has no place there is read
                whole.

        Returns:
            The state, on all ranks.

        Raises:
            CheckpointNotFoundError: nothing is there. Like the others raised on all ranks, if on
                any.
            CheckpointCorruptedError: damaged, incomplete, or not a checkpoint; the file is named.
            CheckpointError: it can't be read, or a tensor to fill has another shape. If its
                `overwritten` is true, the tensors to fill are overwritten in part on some rank;
                otherwise they are as they were on all.
        """
        from core.checkpoint.any_form import formats
        from core.checkpoint.storage import messages

        # Agreed on before a byte is written: what only one rank can't load leaves the others as
        # they were.
        share = (collectives.rank, collectives.size)
        known, self._described = self._described, None
        has_targets, fill = together(
            collectives,
            lambda: formats.prepare_load(
                path, state, share, verifies_first=self.verifies_first, known=known
            ),
        )
        with messages.overwriting(has_targets):
            return together(collectives, fill)

    def find_damage(self, path: PathLike, *, collectives: Collectives) -> str | None:
        """All ranks. The damage that ranks find, each in what it wrote, or as many ranks would
        have.
        """
        if type(self).verify_checkpoint is not AnyFormCheckpointIO.verify_checkpoint:
            # a subclass has its own idea of what is whole
            return super().find_damage(path, collectives=collectives)
        from core.checkpoint.joint import verifying

        return verifying.damage_of(path, collectives)

    def describe_checkpoint(
        self, path: PathLike, *, collectives: Collectives
    ) -> dict[str, Any] | None:
        """All ranks. The state that was saved at `path`, with a `TensorDescription` in the place of
        each tensor.

        Returns:
            None for a checkpoint in one file.

        Raises:
            CheckpointError: as `load_checkpoint`.
        """
        from core.checkpoint.any_form import formats

        self._described = None
        found = together(
            collectives, lambda: formats.describe(path, (collectives.rank, collectives.size))
        )
        if found is None:
            return None
        described, self._described = found
        return described

    def teardown(self) -> None:
        """All ranks; idempotent. Release what was described."""
        self._described = None
