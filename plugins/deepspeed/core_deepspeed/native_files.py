"""The folders that DeepSpeed writes: names in them, what the core adds, and what can be done to both kinds."""

from __future__ import annotations

import io
import shutil
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from core import CheckpointCorruptedError, CheckpointError, CheckpointIO, CheckpointNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core import Collectives, PathLike

TAG = "core"
"""The folder in the folder, which holds the files."""

REST = "core"
"""The key under which DeepSpeed's files hold the rest of a state: all that isn't the engine's."""

GROUPS = "param_groups"
_MAX_NAME_BYTES = 1 << 12
ROUTER = "module."
"""The prefix of DeepSpeed's names: the user's module is one of a `MethodRouter`."""

_INSIDE = "in DeepSpeed's files"


def module_mark() -> dict[str, Any]:
    """Stands in a state for the module that DeepSpeed's files hold."""
    return {_INSIDE: True}


def optimizer_mark(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Stands in a state for the optimizer that DeepSpeed's files hold; with its groups, by names of parameters."""
    return {_INSIDE: True, GROUPS: groups}


def is_mark(state: Any) -> bool:
    """True for a part of a state that says only that it is in DeepSpeed's files."""
    return isinstance(state, dict) and _INSIDE in state


@contextmanager
def quietly() -> Iterator[None]:
    """A context in which DeepSpeed's tools print only a progress bar, without a thread: that would prevent forking."""
    from tqdm import tqdm

    interval, tqdm.monitor_interval = tqdm.monitor_interval, 0
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        tqdm.monitor_interval = interval


class DeepSpeedFolderIO(CheckpointIO):
    """The base of the two layouts.

    Attributes:
        latest: the file that names the folder in the folder. It is written last.
    """

    latest: ClassVar[str]

    def remove_checkpoint(self, path: PathLike, *, collectives: Collectives) -> None:
        """Delete the folder at `path`. Nothing happens if it is not there.

        Raises:
            CheckpointError: something else is there.
        """
        if collectives.rank == 0 and Path(path).exists():
            if not self.exists(path):
                raise CheckpointError(f"{str(path)!r} is not a checkpoint of DeepSpeed's. It is left alone.")
            shutil.rmtree(path)
        collectives.barrier()

    def exists(self, path: PathLike) -> bool:
        """True if DeepSpeed has finished writing at `path`."""
        return (Path(path) / self.latest).is_file()

    def files_of(self, path: PathLike) -> Path:
        """The folder in the folder at `path`.

        Raises:
            CheckpointNotFoundError: nothing is there, or something else.
            CheckpointCorruptedError: that file names no folder in it.
        """
        if not self.exists(path):
            raise CheckpointNotFoundError(
                f"No checkpoint of DeepSpeed's is at {str(path)!r}: expected a folder with the file {self.latest!r}."
            )
        latest = Path(path) / self.latest
        with latest.open("rb") as file:
            name = file.read(_MAX_NAME_BYTES).decode(errors="replace").strip()
        if not is_name(name):
            raise CheckpointCorruptedError(
                f"{str(latest)!r} holds {name[:80]!r}, where the name of a folder beside it was expected."
            )
        return Path(path) / name


def is_name(text: str) -> bool:
    """True if a text from a file is a name in a folder, and leads nowhere else."""
    return text not in ("", ".", "..") and not {"/", "\\", "\0"} & set(text)
