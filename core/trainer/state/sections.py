"""The sections of a checkpoint: an error while one is restored has its name."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from core.contract import CheckpointCorruptedError, CoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.contract import PathLike

_MAX_REASON = 300


@contextlib.contextmanager
def restoring(name: str, path: PathLike, saved: object = "something") -> Iterator[None]:
    """A context in which one section is restored: what raises there does so over its content, shown if it is given.

    Raises:
        CheckpointCorruptedError: with the section's name.
    """
    try:
        yield
    except (CoreError, OSError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointCorruptedError(
            f"{path} is damaged, or not a checkpoint of this run: its {name} is {saved!s:.80} that can't be restored. "
            f"{reason:.{_MAX_REASON}} Load another checkpoint."
        ) from error
