"""The base for checkpoints in an engine's own layout."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from core.contract import (
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointIO,
    CheckpointNotFoundError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.contract import Collectives, PathLike


class EngineFolderIO(CheckpointIO):
    """Folders on local disks that a training engine writes by itself. Meant to be subclassed.

    A subclass adds `load_checkpoint`. Where the engine is at hand, it overrides `save_checkpoint`
    too, and sets `saves_from_all_ranks`.

    Attributes:
        engine: name of the engine, for messages.
        last_file: the file that is written last: a folder that has it is a whole checkpoint.
        how_to_save: the message of the error where the engine isn't at hand: what does write such
            folders.
    """

    engine: ClassVar[str]
    last_file: ClassVar[str]
    how_to_save: ClassVar[str]

    def save_checkpoint(
        self, state: dict[str, Any] | None, path: PathLike, *, collectives: Collectives
    ) -> None:
        """Refused: without the engine such a folder can't be written.

        Raises:
            CheckpointError: always.
        """
        raise CheckpointError(self.how_to_save)

    def remove_checkpoint(self, path: PathLike, *, collectives: Collectives) -> None:
        """Delete the folder at `path`. Nothing happens if it is not there.

        Raises:
            CheckpointError: something else is there.
        """
        if collectives.rank == 0 and Path(path).exists():
            self.refuse_other(path)
            shutil.rmtree(path)
        collectives.barrier()

    def exists(self, path: PathLike) -> bool:
        """True if the engine has finished writing at `path`."""
        return (Path(path) / self.last_file).is_file()

    def refuse_other(self, path: PathLike) -> None:
        """Refuse to replace or delete what stands at `path`, if it isn't such a checkpoint.

        Raises:
            CheckpointError: it isn't.
        """
        if Path(path).exists() and not self.exists(path):
            raise CheckpointError(
                f"{str(path)!r} is no {self.engine} checkpoint, and stays as it is. Save to "
                "another path."
            )

    def require(self, path: PathLike) -> None:
        """Refuse to read where no such checkpoint is.

        Raises:
            CheckpointNotFoundError: nothing is there, or something else.
        """
        if not self.exists(path):
            raise CheckpointNotFoundError(
                f"No {self.engine} checkpoint is at {str(path)!r}: expected a folder with the file "
                f"{self.last_file!r}."
            )


@contextmanager
def reported_as_damage(message: str) -> Iterator[None]:
    """A context for code that takes apart what stands in an engine's files: what isn't in its place
    there is damage.

    Args:
        message: begins that of the error; the cause follows.

    Raises:
        CheckpointCorruptedError: the code ended in an error of its own.
        CheckpointError: the code raised it.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # whatever a file of strangers leads to
        raise CheckpointCorruptedError(f"{message}: {error!r:.300}.") from error
