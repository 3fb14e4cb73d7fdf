"""What `ckpt_path="last"` and `ckpt_path="best"` stand for."""

from __future__ import annotations

import logging
import os
import posixpath
import warnings
from typing import TYPE_CHECKING, Any

from core.contract import CheckpointCorruptedError, CheckpointNotFoundError, ConfigurationError
from core.trainer import requeue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.contract.checkpoint_io import PathLike
    from core.trainer.trainer import Trainer

_EXTENSION = ".ckpt"


def find_checkpoint(trainer: Trainer, wanted: PathLike | None) -> PathLike | None:
    """All ranks, which get what rank 0 finds. A path stays as it is.

    - `"best"`: what the ModelCheckpoint says; the first that has a `monitor`, if there are several.
    - `"last"`: what a scheduler's warning has saved, if the job was requeued; or the newest checkpoint that any
      ModelCheckpoint of this trainer has written, in this process or in an earlier run of the same experiment. One that
      is damaged is passed over, and a warning names it. `fit` begins anew if there is none, so that the same command
      starts a run and goes on with it.

    Raises:
        CheckpointNotFoundError: there is none.
        ConfigurationError: `"best"`, and nobody saves checkpoints.
    """
    if wanted not in ("last", "best"):
        return wanted
    found: str | Exception | None = None
    if trainer.is_global_zero:
        try:
            found = _find_best(trainer) if wanted == "best" else _find_last(trainer)
        except (ConfigurationError, CheckpointNotFoundError) as error:
            found = error
    found = trainer.strategy.broadcast(found)
    if isinstance(found, Exception):
        raise found
    if trainer.is_global_zero:
        text = f"goes on from {found}" if found else "finds no checkpoint, and training begins anew"
        logging.getLogger("core").info("ckpt_path=%r %s", wanted, text)
    return found


def _savers(trainer: Trainer) -> list[Any]:
    return [callback for callback in trainer.callbacks if hasattr(callback, "best_model_path")]


def _find_best(trainer: Trainer) -> str:
    savers = _savers(trainer)
    if not savers:
        raise ConfigurationError(
            "ckpt_path='best' asks a ModelCheckpoint, and callbacks has none. Add one with monitor=..., or pass a path."
        )
    judge = next((saver for saver in savers if getattr(saver, "monitor", None)), savers[0])
    if not judge.best_model_path:
        raise CheckpointNotFoundError(
            f"ckpt_path='best': {type(judge).__name__} has saved nothing yet. Call fit first, or pass a path."
        )
    return str(judge.best_model_path)


def _find_last(trainer: Trainer) -> str | None:
    saved = requeue.checkpoint_path(trainer)
    if saved is not None and _is_whole(trainer, saved):
        return saved
    folders = sorted({folder for saver in _savers(trainer) for folder in _folders(trainer, saver)})
    entries = sorted((entry for folder in folders for entry in _checkpoints(folder)), reverse=True)
    newest = next((path for _, path in entries if _is_whole(trainer, path)), None)
    if newest is None and not trainer.trains:
        raise CheckpointNotFoundError(
            f"ckpt_path='last': no checkpoint is in {', '.join(folders) or 'any folder, for nothing saves one'}. "
            "Pass a path."
        )
    return newest


def _is_whole(trainer: Trainer, path: str) -> bool:
    """Whether a checkpoint is complete and undamaged. Damage is told: an older one will be taken."""
    storage = trainer.strategy.checkpoint_io
    if not storage.exists(path):
        return False
    try:
        storage.verify_checkpoint(path)
    except CheckpointCorruptedError as error:
        warnings.warn(f"ckpt_path='last' passes over a damaged checkpoint: {error}", stacklevel=2)
        return False
    return True


def _folders(trainer: Trainer, saver: Any) -> Iterator[str]:
    """Where a saver's checkpoints are: in its own folder, and in that of earlier runs, which a logger counts."""
    folder = os.fspath(getattr(saver, "dirpath", None) or posixpath.join(trainer.log_dir, "checkpoints"))
    yield folder
    if not folder.startswith(posixpath.join(trainer.log_dir, "")) or trainer.log_dir == trainer.default_root_dir:
        return
    inside, runs = os.path.relpath(folder, trainer.log_dir), os.path.dirname(trainer.log_dir)
    if "://" not in runs and os.path.isdir(runs):
        yield from (os.path.join(entry.path, inside) for entry in os.scandir(runs) if entry.is_dir())


def _checkpoints(folder: str) -> list[tuple[float, str]]:
    """(time of its last change, path) of what looks like a checkpoint in a folder, or behind a URL."""
    if "://" in folder or "::" in folder:
        return _remote_checkpoints(folder)
    if not os.path.isdir(folder):
        return []
    entries = (entry for entry in os.scandir(folder) if entry.name.endswith(_EXTENSION))
    return [(entry.stat().st_mtime_ns / 1e9, entry.path) for entry in entries]


def _remote_checkpoints(folder: str) -> list[tuple[float, str]]:
    import fsspec

    filesystem, path = fsspec.url_to_fs(folder)
    if not filesystem.exists(path):
        return []
    names = [name for name in filesystem.ls(path, detail=False) if name.endswith(_EXTENSION)]
    return [(filesystem.modified(name).timestamp(), posixpath.join(folder, posixpath.basename(name))) for name in names]
