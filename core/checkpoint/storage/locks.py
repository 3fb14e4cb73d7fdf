"""Locks on folders, which show that a process is at work there. No effect where a file system can't
lock folders.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def held(path: Path, *, shared: bool = False) -> Iterator[bool]:
    """Hold the lock on a folder, and wait for it if need be. It is gone with the process, however
    that ends.

    Yields:
        Whether the file system can lock folders.
    """
    descriptor, is_locked = os.open(path, os.O_RDONLY), False
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            is_locked = True
        yield is_locked
    finally:
        _give_back(descriptor)  # what was done under the lock is done


def is_free(path: Path) -> bool:
    """True if the lock on a file or folder is free; False where that is unknown."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would be waited for
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        _give_back(descriptor)
    return True


def _give_back(descriptor: int) -> None:
    """Unlock and close. A process that was forked meanwhile, such as a loader's worker, has the
    file open as well.
    """
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    with contextlib.suppress(OSError):
        os.close(descriptor)
