"""The checkpoints that `ckpt_path="last"` and `ckpt_path="best"` stand for."""

from __future__ import annotations

import logging
import os
import posixpath
from typing import TYPE_CHECKING, Any

from core.contract import CheckpointNotFoundError, ConfigurationError
from core_training.hooks.callback import StateKeeper
from core_training.state import requeue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.contract import PathLike
    from core_training.run import Run


def find_checkpoint(run: Run, wanted: PathLike | None) -> PathLike | None:
    """All ranks, which get what rank 0 finds. A path stays as it is.

    - `"best"`: what the first ModelCheckpoint says that has a `monitor`.
    - `"last"`: what a scheduler's warning has saved, if the job was requeued; or the `newest_valid`
      checkpoint that any ModelCheckpoint of this Trainer has written, in this process or in an
      earlier run of the same experiment. One that is damaged is passed over, and a warning names
      it. `fit` begins anew if there is none, so that the same command starts a run and goes on with
      it.

    Raises:
        CheckpointNotFoundError: there is none.
        ConfigurationError: `"best"`, without a ModelCheckpoint that has a `monitor`.
    """
    if wanted not in ("last", "best"):
        return wanted
    found: str | Exception | None = None
    if run.strategy.is_global_zero:
        try:
            found = _find_best(run) if wanted == "best" else _find_last(run)
        except (ConfigurationError, CheckpointNotFoundError) as error:
            found = error
    found = run.strategy.broadcast(found)
    if isinstance(found, Exception):
        raise found
    for callback in run.callbacks:
        if wanted == "last" and isinstance(callback, StateKeeper):
            found = callback.newest(run.trainer, found) or found
            break
    if run.strategy.is_global_zero:
        text = "finds no checkpoint, and training begins anew"
        if found:
            text = f"goes on from {found}"
        logging.getLogger("core").info("ckpt_path=%r %s", wanted, text)
    return found


def _savers(run: Run) -> list[Any]:
    return [callback for callback in run.callbacks if hasattr(callback, "best_model_path")]


def _find_best(run: Run) -> str:
    for judge in _savers(run):
        if getattr(judge, "monitor", judge) is None:
            continue
        if not judge.best_model_path:
            raise CheckpointNotFoundError(
                f"ckpt_path='best': {type(judge).__name__} has saved nothing yet. Call fit first, "
                "or pass a path."
            )
        return str(judge.best_model_path)
    raise ConfigurationError(
        "ckpt_path='best' asks a ModelCheckpoint that has a monitor, and callbacks has none. Add "
        "one, or pass a path, or ckpt_path='last' for the newest."
    )


def _find_last(run: Run) -> str | None:
    from core.checkpoint import newest_valid

    savers = _savers(run)
    folders = sorted({folder for saver in savers for folder in _folders(run, saver)})
    endings = tuple({str(getattr(saver, "FILE_EXTENSION", ".ckpt")) for saver in savers})
    newest = newest_valid(
        *folders,
        first=requeue.checkpoint_path(run),
        storage=run.strategy.checkpoint_io,
        suffix=endings,
    )
    if newest is None and not run.trains:
        raise CheckpointNotFoundError(
            "ckpt_path='last': no checkpoint is in "
            f"{', '.join(folders) or 'any folder, for nothing saves one'}. Pass a path."
        )
    return newest


def _folders(run: Run, saver: object) -> Iterator[str]:
    """The folders of a saver's checkpoints: its own, and those of earlier runs, which a logger
    counts.
    """
    folder = os.fspath(
        getattr(saver, "dirpath", None) or posixpath.join(run.log_dir, "checkpoints")
    )
    yield folder
    # Only where a logger has given this run a folder of its own, beside those of earlier runs.
    if (
        not folder.startswith(posixpath.join(run.log_dir, ""))
        or run.log_dir == run.default_root_dir
    ):
        return
    inside, runs = os.path.relpath(folder, run.log_dir), os.path.dirname(run.log_dir)
    if os.path.isdir(runs):
        yield from (
            os.path.join(entry.path, inside) for entry in os.scandir(runs) if entry.is_dir()
        )
