"""Texts of the errors of storage."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from core.contract.errors import CheckpointError, CheckpointNotFoundError
from core.text.printable import printable
from core.text.spelling import near_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.checkpoint.storage.place import Place

FILE_SUFFIXES = (".ckpt", ".pt", ".pth", ".safetensors")
"""Names in a folder that are taken for checkpoints end so."""


class UnsettledError(CheckpointError):
    """A save failed when it had replaced what was there, or may have. The cause is chained."""


@contextlib.contextmanager
def in_place() -> Iterator[None]:
    """A context for making a checkpoint safe that is in its place already: nothing is untouched any
    more.
    """
    try:
        yield
    except OSError as error:
        raise UnsettledError(
            "is in its place, but may not survive a crash of the machine"
        ) from error


@contextlib.contextmanager
def overwriting(has_targets: bool) -> Iterator[None]:
    """A context for reading into tensors of the caller: an error says that they can't be used any
    more.
    """
    try:
        yield
    except CheckpointError as error:
        if has_targets and not error.overwritten:
            error.overwritten = True
            error.args = (
                f"{error} What it was loaded into is overwritten in part: load another checkpoint "
                "into it, or make it anew, before you use it. "
                "DistributedCheckpointIO(verifies_first=True) would have left it as it was.",
            )
        raise


def describe(error: BaseException) -> str:
    """The cause in a few words."""
    if isinstance(error, CheckpointError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(": .")


def cannot_write(path: str, error: BaseException) -> CheckpointError:
    """The error for a checkpoint that can't be written; what was there is as it was, or isn't."""
    if isinstance(error, UnsettledError):
        cause = describe(error.__cause__ or error)
        return CheckpointError(
            f"The checkpoint {path!r} {error}: {cause}. Look after the storage, and save again."
        )
    if isinstance(error, CheckpointError):  # it says what was expected
        return CheckpointError(
            f"The checkpoint {path!r} can't be written: {error} What was there is untouched."
        )
    expected = "a place with room that this process may write to"
    if isinstance(error, IsADirectoryError):
        expected = (
            "no folder there: move it, which may be a checkpoint of another form, or save elsewhere"
        )
    cause = describe(error).rstrip(". ")
    return CheckpointError(
        f"The checkpoint {path!r} can't be written: {cause}. What was there is untouched. Expected "
        f"{expected}."
    )


def not_as_written(name: str) -> CheckpointError:
    """The error for a file that storage gives back other than it was written, before it replaces
    anything.
    """
    return CheckpointError(
        f"its file {name!r} was written, and something else comes back when it is read."
    )


def cannot_read(path: str, error: BaseException) -> CheckpointError:
    """The error for a checkpoint that can't be read for a reason that isn't its content."""
    return CheckpointError(f"The checkpoint {path!r} can't be read: {describe(error)}.")


def cannot_delete(path: str, error: BaseException) -> CheckpointError:
    """The error for a checkpoint that can't be deleted."""
    return CheckpointError(f"The checkpoint {path!r} can't be deleted: {describe(error)}.")


def not_found(path: str, place: Place) -> CheckpointNotFoundError:
    """The error for a checkpoint that doesn't exist.

    Args:
        path: of the checkpoint, as the user wrote it.
        place: the same.
    """
    try:
        names = [entry.name for entry in place.parent.entries()]
    except OSError:
        return CheckpointNotFoundError(
            f"There is no checkpoint {path!r}, nor its folder. Check the path."
        )
    wanted = os.path.basename(path.rstrip("/"))
    suffixes = (*FILE_SUFFIXES, os.path.splitext(wanted)[1] or ".ckpt")
    names = [name for name in names if not name.startswith(".") and name.endswith(suffixes)]
    near = near_names(wanted, names) or sorted(names)[:5]
    beside = "No checkpoint is in that folder."
    if near:
        beside = f"In that folder are: {', '.join(map(printable, near))}."
    return CheckpointNotFoundError(f"There is no checkpoint {path!r}. {beside}")
