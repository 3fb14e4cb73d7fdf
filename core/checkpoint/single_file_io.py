"""The base class for all forms of a checkpoint in one file."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from core.checkpoint.any_form import dates, formats
from core.checkpoint.any_form_io import AnyFormCheckpointIO
from core.checkpoint.joint.agreement import on_rank_zero, together

if TYPE_CHECKING:
    from core.contract.checkpoint_io import Collectives, PathLike


class SingleFileCheckpointIO(AnyFormCheckpointIO):
    """One file, which rank 0 writes and all ranks read. Meant to be subclassed: only `write_file` differs."""

    layout = "full"

    @abc.abstractmethod
    def write_file(self, state: dict[str, Any], path: PathLike) -> None:
        """Rank 0. Write the file and its digest, replacing what is there."""

    def save_checkpoint(self, state: dict[str, Any] | None, path: PathLike, *, collectives: Collectives) -> None:
        """Write `state` to `path`, replacing what is there.

        Args:
            state: on rank 0; nested dicts and lists of plain types, tensors and arrays.
            path: a local path or a URL that fsspec knows. Missing folders are made.
            collectives: the ranks that call this together.

        Raises:
            CheckpointError: it can't be written, or `state` doesn't hold what this form takes; what was at `path` is
                untouched. Raised on all ranks.
        """

        def write() -> None:
            assert state is not None, "rank 0 has the state of layout 'full'"
            dates.look_beside(path)
            self.write_file(state, path)

        on_rank_zero(collectives, write)

    def load_checkpoint(
        self, path: PathLike, *, collectives: Collectives, state: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Read what was saved at `path`, also by another CheckpointIO of the core; tensors come back on the CPU.

        A file that ends with `.safetensors` and wasn't written by core becomes `{"model": {...}}`.

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
