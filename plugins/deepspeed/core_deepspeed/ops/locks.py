"""The lock that torch keeps in an extension's folder while it compiles.

Who compiles has made the file and keeps it open. Whoever comes then waits until the file is gone: for ever, if its
maker was killed, since nothing tells that the lock is stale. So it is looked at before.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import psutil

from core import ConfigurationError

if TYPE_CHECKING:
    from datetime import timedelta
    from pathlib import Path

POLL_S = 0.2


def holder_of(lock: Path) -> int | None:
    """The process of this machine that keeps the file open, as far as this user may see that."""
    path = str(lock.resolve())
    for process in psutil.process_iter():
        try:
            if any(file.path == path for file in process.open_files()):
                return int(process.pid)
        except psutil.Error:
            continue
    return None


def is_stale(lock: Path) -> bool:
    """Whether the file is there, and nobody keeps it open."""
    if not lock.exists() or holder_of(lock) is not None:
        return False
    time.sleep(POLL_S)  # its maker closes the file, and removes it then
    return lock.exists() and holder_of(lock) is None


def wait_for(name: str, lock: Path, limit: timedelta) -> None:
    """Wait until whoever compiles is done, and say so.

    Args:
        name: of what is compiled.
        lock: the file.
        limit: after which not to wait any longer.

    Raises:
        ConfigurationError: nobody compiles, or it takes too long.
    """
    deadline = time.monotonic() + limit.total_seconds()
    told = False
    while lock.exists():
        if is_stale(lock):
            raise ConfigurationError(stale(name, lock))
        if not told:
            told = True
            logging.getLogger("core").warning(
                "Waiting for process %s, which compiles %s for DeepSpeed, for at most %s.", holder_of(lock), name, limit
            )
        if time.monotonic() > deadline:
            raise ConfigurationError(
                f"Process {holder_of(lock)} has been compiling {name} for DeepSpeed for more than {limit}: it keeps "
                f"{lock}. Look at what it does; when it is gone, delete that file."
            )
        time.sleep(POLL_S)


def stale(name: str, lock: Path) -> str:
    """What is wrong, and what to do."""
    return (
        f"{lock} says that somebody compiles {name} for DeepSpeed, and no process on this machine does: it was killed. "
        f"Every run would wait for it, for ever. Delete the file: rm {lock}"
    )
