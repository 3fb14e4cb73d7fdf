"""Where states lie in the memory of a node: in a folder for each run."""

from __future__ import annotations

import os
import re
import stat
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from core.contract import ConfigurationError

if TYPE_CHECKING:
    from core.contract import PathLike

_SHARED_MEMORY = "/dev/shm"  # the memory file system of Linux, in which every user makes folders


def memory_folder(given: PathLike | None = None) -> Path:
    """The folder in memory: what is given, or the variable `CORE_MEMORY_FOLDER`, or `/dev/shm`, or
    the temporary one.

    Raises:
        ConfigurationError: it isn't there.
    """
    given = given or os.environ.get("CORE_MEMORY_FOLDER")
    if given is None:
        return Path(_SHARED_MEMORY if os.path.isdir(_SHARED_MEMORY) else tempfile.gettempdir())
    if not os.path.isdir(given):
        raise ConfigurationError(
            f"MemoryCheckpoint: there is no folder {os.fspath(given)!r}. Make it, or pass another."
        )
    return Path(given)


def folder_name(job: str, root: PathLike) -> str:
    """The name of a run's folder.

    Args:
        job: id of the job.
        root: `default_root_dir` of the Trainer.
    """
    return f"{_prefix(job)}{zlib.crc32(os.path.abspath(root).encode()):08x}"


def kept_folders(job: str) -> list[Path]:
    """The folders in memory in which this user's runs of a job keep states."""
    return sorted(filter(is_own_folder, memory_folder().glob(f"{_prefix(job)}*")))


def is_own_folder(path: PathLike) -> bool:
    """True for a folder of this user's in which nobody else writes; a link is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    )


def _prefix(job: str) -> str:
    return f"core-{os.getuid()}-{re.sub(r'[^A-Za-z0-9_.-]', '_', job)}-"
