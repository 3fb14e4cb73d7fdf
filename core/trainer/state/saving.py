"""Checkpoints of a running stage, written between two optimizer steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.trainer.state import snapshot
from core.watch import phase

if TYPE_CHECKING:
    from core.contract import PathLike
    from core.trainer.run import Run


def save_at_step(run: Run, path: PathLike, *, weights_only: bool) -> None:
    """All ranks. Write a checkpoint now, or once the accumulation window has ended."""
    if run.count_unfinished() or run.progress.epoch_is_ending:
        run.pending_saves.append((path, weights_only))
    else:
        _write(run, path, weights_only)


def write_pending(run: Run) -> None:
    """All ranks. Write what was asked for within the accumulation window that has just ended."""
    for path, weights_only in run.pending_saves:
        _write(run, path, weights_only)
    run.pending_saves = []


def _write(run: Run, path: PathLike, weights_only: bool) -> None:
    with phase("checkpoint"), run.profile("save_checkpoint"):
        snapshot.save(run, path, weights_only=weights_only)
    if not weights_only:
        run.newest_save = path, run.progress.global_step
