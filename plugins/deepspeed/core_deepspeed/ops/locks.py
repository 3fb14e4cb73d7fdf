"""The lock that torch keeps in an extension's folder while it compiles.

The compiling process keeps the file open. Up to torch 2.13 the existence of the file is the lock:
other processes wait until it is gone, forever if its maker was killed, since torch doesn't detect a
stale lock. So core looks at it before. From 2.14 on the kernel locks the file. The file then stays
for good and means nothing by itself, and no lock outlives its holder.
"""

from __future__ import annotations

import fcntl
import logging
import os
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


def is_kept(lock: Path) -> bool:
    """True if torch would wait for the lock."""
    return _is_locked(lock) if _kernel_locks() else lock.exists()


def _kernel_locks() -> bool:
    """True if this torch locks the file by the kernel, rather than by the file's existence."""
    from torch.utils import cpp_extension

    return not hasattr(cpp_extension, "FileBaton")


def _is_locked(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except OSError:  # it isn't there, or torch is going to say what is wrong with it
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def is_stale(lock: Path) -> bool:
    """True if torch would wait in vain: the file's existence is the lock, and no process keeps the
    file open.
    """
    if _kernel_locks() or not lock.exists() or holder_of(lock) is not None:
        return False
    time.sleep(POLL_S)  # its maker closes the file, and removes it then
    return lock.exists() and holder_of(lock) is None


def wait_for(name: str, lock: Path, limit: timedelta) -> None:
    """Wait until the process that compiles is done, and say so.

    Args:
        name: of what is compiled.
        lock: the file.
        limit: after which not to wait any longer.

    Raises:
        ConfigurationError: no process compiles, or it takes too long.
    """
    deadline = time.monotonic() + limit.total_seconds()
    has_warned = False
    while is_kept(lock):
        if is_stale(lock):
            raise ConfigurationError(stale(name, lock))
        if not has_warned:
            has_warned = True
            logging.getLogger("core").warning(
                "Waiting for process %s, which compiles %s for DeepSpeed, for at most %s.",
                holder_of(lock),
                name,
                limit,
            )
        if time.monotonic() > deadline:
            raise ConfigurationError(
                f"Process {holder_of(lock)} has been compiling {name} for DeepSpeed for more than "
                f"{limit}: it keeps {lock}. Look at what it "
                f"does{'.' if _kernel_locks() else '; when it is gone, delete that file.'}"
            )
        time.sleep(POLL_S)


def stale(name: str, lock: Path) -> str:
    """The message about a stale lock: what is wrong, and what to do."""
    return (
        f"{lock} says that a process compiles {name} for DeepSpeed, and none on this machine does: "
        f"it was killed. Every run would wait for it, for ever. Delete the file: rm {lock}"
    )
