"""A checkpoint in one file, as torch.save writes it, with its digest in a second one beside it."""

from __future__ import annotations

import difflib
import os
import warnings
from typing import TYPE_CHECKING, Any, BinaryIO

import torch

from core.checkpoint import digest
from core.checkpoint.plain_state import safe_globals, to_plain
from core.checkpoint.storage import Place, place_of
from core.contract.checkpoint_io import CheckpointIO
from core.contract.errors import CheckpointCorruptedError, CheckpointError, CheckpointNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract.checkpoint_io import Collectives, PathLike


class TorchCheckpointIO(CheckpointIO):
    """One file for the whole state, which `torch.load(path, weights_only=True)` reads as well.

    Rank 0 writes, all ranks read. Beside `last.ckpt` stands `last.ckpt.digest`; every load compares the two, and a
    damaged file is named. Move or copy both. A file without a digest, from elsewhere, is loaded with a warning.

    `path` may be a local path or a URL that fsspec knows, such as `s3://bucket/last.ckpt`. On a local file system a
    checkpoint is replaced at once, also when the process or the machine dies; an object store does as well as its own
    move.

    The tensors of a loaded state are in memory and not mapped from the file: they outlive it, and another process that
    replaces it on a shared file system can't take this one down.
    """

    layout = "full"

    def save_checkpoint(self, state: dict[str, Any] | None, path: PathLike, *, collectives: Collectives) -> None:
        """Write `state` to `path`, replacing what is there.

        Args:
            state: on rank 0; nested dicts and lists of plain types, tensors and arrays.
            path: a local path or a URL that fsspec knows. Missing folders are made.
            collectives: the ranks that call this together.

        Raises:
            CheckpointError: it can't be written, or `state` holds something else; what was at `path` is untouched.
                Raised on all ranks.
        """
        if collectives.rank == 0:
            assert state is not None, "rank 0 has the state of layout 'full'"
            _together(collectives, lambda: _write(state, path))
        else:
            _together(collectives, lambda: None)

    def load_checkpoint(
        self, path: PathLike, *, collectives: Collectives, state: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Read what was saved at `path`; tensors come back on the CPU.

        Args:
            path: a local path or a URL that fsspec knows.
            collectives: the ranks that call this together.
            state: not used by layout `full`.

        Returns:
            The state, on all ranks.

        Raises:
            CheckpointNotFoundError: nothing is there. Like the others raised on all ranks, if on any.
            CheckpointCorruptedError: damaged, or not a checkpoint; the file is named.
            CheckpointError: it can't be read.
        """
        loaded: dict[str, Any] = _together(collectives, lambda: _read(path))
        return loaded

    def remove_checkpoint(self, path: PathLike, *, collectives: Collectives) -> None:
        """Delete the checkpoint at `path` and its digest. Nothing happens if they are not there.

        Raises:
            CheckpointError: it can't be deleted. Raised on all ranks.
        """
        _together(collectives, lambda: _remove(path) if collectives.rank == 0 else None)

    def exists(self, path: PathLike) -> bool:
        """Rank 0. Whether a checkpoint file is at `path`."""
        return place_of(path).exists()


def _together(collectives: Collectives, work: Callable[[], Any]) -> Any:
    """The result of `work`, once it has succeeded on all ranks; what fails on one is raised on every one."""
    result, error = None, None
    try:
        result = work()
    except Exception as raised:
        error = raised
    report = None if error is None else (type(error), str(error))
    reports = collectives.gather_objects(report)
    failed = [] if reports is None else [(rank, *report) for rank, report in enumerate(reports) if report]
    first = collectives.broadcast_object(failed[0] if failed else None)
    if error is not None:
        raise error
    if first is not None:
        rank, kind, message = first
        raise (kind if issubclass(kind, CheckpointError) else CheckpointError)(f"On rank {rank}: {message}")
    return result


def _write(state: dict[str, Any], path: PathLike) -> None:
    plain = to_plain(state)
    writer: digest.HashingWriter | None = None

    def write(file: BinaryIO) -> str:
        nonlocal writer
        writer = digest.HashingWriter(file)
        torch.save(plain, writer)  # type: ignore[arg-type]  # it needs `write` and `flush` only
        return writer.hexdigest()

    try:
        place_of(path).replace(write)
    except Exception as error:
        cause = (writer and writer.error) or error
        raise CheckpointError(
            f"The checkpoint {os.fspath(path)!r} can't be written: {_describe(cause)}. What was there is untouched. "
            "Expected a place with room that this process may write to."
        ) from cause


def _read(path: PathLike) -> dict[str, Any]:
    try:
        place = place_of(path)
        return _verified(place, os.fspath(path))
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise _not_found(place, os.fspath(path)) from error
    except IsADirectoryError as error:
        raise CheckpointCorruptedError(
            f"{os.fspath(path)!r} is a folder. Expected a checkpoint in one file; name the file, or load with the "
            "CheckpointIO that wrote the folder."
        ) from error
    except Exception as error:
        raise CheckpointError(f"The checkpoint {os.fspath(path)!r} can't be read: {_describe(error)}.") from error


def _verified(place: Place, path: str) -> dict[str, Any]:
    while True:
        content = place.read_digest()
        with place.open() as file:
            if content is None:
                warnings.warn(
                    f"{path!r} has no digest beside it ({path}{digest.SUFFIX}), so damage to it would not be seen. "
                    "Save it again with core to get one.",
                    stacklevel=2,
                )
                return _load(file, path)
            if digest.of_file(file) in digest.from_text(content):
                file.seek(0)
                return _load(file, path)
        # Another process may have replaced both between the two reads.
        if place.read_digest() == content:
            raise _damaged(path, content)


def _load(file: BinaryIO, path: str) -> dict[str, Any]:
    try:
        with torch.serialization.safe_globals(safe_globals()):
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except (MemoryError, OSError):
        raise
    except Exception as error:
        raise CheckpointCorruptedError(
            f"{path!r} is not a checkpoint that can be loaded without running code from it: {_reason(error)}. "
            "Expected a file written by core, or by torch.save with plain types and tensors only."
        ) from error
    if not isinstance(loaded, dict):
        raise CheckpointCorruptedError(
            f"{path!r} holds a {type(loaded).__name__}. Expected a dict, the state of a run."
        )
    return loaded


def _remove(path: PathLike) -> None:
    try:
        place_of(path).remove()
    except Exception as error:
        raise CheckpointError(f"The checkpoint {os.fspath(path)!r} can't be deleted: {_describe(error)}.") from error


def _damaged(path: str, content: bytes) -> CheckpointCorruptedError:
    if not digest.from_text(content):
        return CheckpointCorruptedError(
            f"{path}{digest.SUFFIX} is damaged: expected lines with a digest. Delete it to load {path!r} unverified."
        )
    return CheckpointCorruptedError(
        f"{path!r} is damaged: its content does not have the digest in {path}{digest.SUFFIX}. Load an earlier "
        "checkpoint. If you replaced the file yourself, delete that digest."
    )


def _not_found(place: Place, path: str) -> CheckpointNotFoundError:
    try:
        names = [name for name in place.siblings() if not name.startswith(".") and not name.endswith(digest.SUFFIX)]
    except OSError:
        return CheckpointNotFoundError(f"There is no checkpoint {path!r}, nor its folder. Check the path.")
    near = difflib.get_close_matches(os.path.basename(path), names, n=3) or sorted(names)[:5]
    beside = f"In that folder are: {', '.join(near)}." if near else "That folder is empty."
    return CheckpointNotFoundError(f"There is no checkpoint {path!r}. {beside}")


def _reason(error: Exception) -> str:
    """Why torch didn't load a file; its message begins with advice to load it unsafely."""
    _, found, reason = str(error).partition("WeightsUnpickler error: ")
    return reason.partition(" by default")[0].partition("\n")[0] if found else _describe(error)


def _describe(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}".rstrip(": .")
