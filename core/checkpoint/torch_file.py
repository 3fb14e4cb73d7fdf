"""A state in one file, as torch.save writes it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, BinaryIO

import torch

from core.checkpoint import foreign_objects, lightning_file, messages, single_file
from core.checkpoint.plain_state import safe_globals, to_plain
from core.contract.errors import CheckpointCorruptedError

if TYPE_CHECKING:
    from core.contract.checkpoint_io import PathLike


def write(state: dict[str, Any], path: PathLike) -> None:
    """Replace what is at `path`.

    Raises:
        CheckpointError: it can't be written, or `state` holds something else than plain types, tensors and arrays.
    """
    plain = to_plain(state)
    # It needs `write` and `flush` only.
    single_file.replace(path, lambda file: torch.save(plain, file))  # type: ignore[arg-type]


def read(path: PathLike) -> dict[str, Any]:
    """The state in a file, verified.

    Raises:
        As `single_file.read`.
    """
    return single_file.read(path, _load)


def _load(file: BinaryIO, path: str) -> dict[str, Any]:
    try:
        loaded = _unpickle(file, [])
    except (MemoryError, OSError):
        raise
    except Exception as error:
        if (loaded := _without_foreign_objects(file, path)) is None:
            raise CheckpointCorruptedError(
                f"{path!r} is not a checkpoint that can be loaded without running code from it: {_reason(error)}. "
                "Expected a file written by core, or by torch.save with plain types and tensors only."
            ) from error
    if not isinstance(loaded, dict):
        raise CheckpointCorruptedError(
            f"{path!r} holds a {type(loaded).__name__}. Expected a dict, the state of a run."
        )
    return lightning_file.translate(loaded) if lightning_file.is_lightning(loaded) else loaded


def _unpickle(file: BinaryIO, stand_ins: list[Any]) -> Any:
    with torch.serialization.safe_globals([*safe_globals(), *stand_ins]):
        return torch.load(file, map_location="cpu", weights_only=True)


def _without_foreign_objects(file: BinaryIO, path: str) -> Any:
    """The content of a file of Lightning's that holds objects of other classes; None for any other file."""
    try:
        loaded = _unpickle(file, foreign_objects.stand_ins(file))
    except (MemoryError, OSError):
        raise
    except Exception:
        return None
    if not isinstance(loaded, dict) or not lightning_file.is_lightning(loaded):
        return None
    left: dict[str, str] = {}
    content = foreign_objects.leave_out(lightning_file.without_unread(loaded), "", left)
    if left:
        named = ", ".join(f"{place} ({kind})" for place, kind in left.items())
        warnings.warn(
            f"{path!r} was written by PyTorch Lightning and holds objects of other classes, which are left out, since "
            f"nothing in a file is executed: {named}. Read without them: {', '.join(content)}.",
            stacklevel=2,
        )
    return content


def _reason(error: Exception) -> str:
    """Why torch didn't load a file; its message begins with advice to load it unsafely."""
    _, found, reason = str(error).partition("WeightsUnpickler error: ")
    if not found:
        return messages.describe(error)
    return reason.partition(" by default")[0].partition("\n")[0] or "it isn't a file of torch.save"
