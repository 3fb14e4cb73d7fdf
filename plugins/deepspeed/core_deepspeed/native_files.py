"""The folders that DeepSpeed writes: names in them, what the core adds, and what can be done to
both kinds.
"""

from __future__ import annotations

import io
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import CheckpointCorruptedError
from core.checkpoint import EngineFolderIO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core import PathLike

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
    """Stands in a state for the optimizer that DeepSpeed's files hold; with its groups, by names of
    parameters.
    """
    return {_INSIDE: True, GROUPS: groups}


def is_mark(state: Any) -> bool:
    """True for a part of a state that says only that it is in DeepSpeed's files."""
    return isinstance(state, dict) and _INSIDE in state


@contextmanager
def quietly() -> Iterator[None]:
    """A context in which DeepSpeed's tools print only a progress bar, without a thread: that would
    prevent forking.
    """
    from tqdm import tqdm

    interval, tqdm.monitor_interval = tqdm.monitor_interval, 0
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        tqdm.monitor_interval = interval


class DeepSpeedFolderIO(EngineFolderIO):
    """The base of the two layouts, whose last file names the folder in the folder."""

    engine = "DeepSpeed"

    def files_of(self, path: PathLike) -> Path:
        """The folder in the folder at `path`.

        Raises:
            CheckpointNotFoundError: nothing is there, or something else.
            CheckpointCorruptedError: that file names no folder in it.
        """
        self.require(path)
        latest = Path(path) / self.last_file
        with latest.open("rb") as file:
            name = file.read(_MAX_NAME_BYTES).decode(errors="replace").strip()
        if not is_name(name):
            raise CheckpointCorruptedError(
                f"{str(latest)!r} holds {name[:80]!r}, where the name of a folder beside it was "
                "expected."
            )
        return Path(path) / name


def is_name(text: str) -> bool:
    """True if a text from a file is a name in a folder, and leads nowhere else."""
    return text not in ("", ".", "..") and not {"/", "\\", "\0"} & set(text)
