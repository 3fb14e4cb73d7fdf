"""Words for errors of storage."""

from __future__ import annotations

import difflib
import os

from core.checkpoint import digest
from core.contract.errors import CheckpointError, CheckpointNotFoundError


def describe(error: BaseException) -> str:
    """The cause in a few words."""
    if isinstance(error, CheckpointError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}".rstrip(": .")


def cannot_write(path: str, error: BaseException) -> CheckpointError:
    """The checkpoint can't be written, and what was there is as it was."""
    if isinstance(error, CheckpointError):  # it says what was expected
        return CheckpointError(f"The checkpoint {path!r} can't be written: {error} What was there is untouched.")
    return CheckpointError(
        f"The checkpoint {path!r} can't be written: {describe(error)}. What was there is untouched. "
        "Expected a place with room that this process may write to."
    )


def cannot_read(path: str, error: BaseException) -> CheckpointError:
    """The checkpoint can't be read for a reason that isn't its content."""
    return CheckpointError(f"The checkpoint {path!r} can't be read: {describe(error)}.")


def cannot_delete(path: str, error: BaseException) -> CheckpointError:
    """The checkpoint can't be deleted."""
    return CheckpointError(f"The checkpoint {path!r} can't be deleted: {describe(error)}.")


def not_found(path: str, names: list[str] | None) -> CheckpointNotFoundError:
    """Nothing is there.

    Args:
        path: of the checkpoint.
        names: of what lies beside it; None if its folder doesn't exist.
    """
    if names is None:
        return CheckpointNotFoundError(f"There is no checkpoint {path!r}, nor its folder. Check the path.")
    names = [name for name in names if not name.startswith(".") and not name.endswith(digest.SUFFIX)]
    near = difflib.get_close_matches(os.path.basename(path.rstrip("/")), names, n=3) or sorted(names)[:5]
    beside = f"In that folder are: {', '.join(near)}." if near else "That folder is empty."
    return CheckpointNotFoundError(f"There is no checkpoint {path!r}. {beside}")
