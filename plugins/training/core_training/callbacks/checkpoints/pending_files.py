"""Checkpoints that are still to be written, and those that they replace."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from core_training.views.trainer_views import TrainerViews


class PendingFiles:
    """Checkpoints to write, and those to remove once the new ones are there. All ranks call the
    methods together.

    Attributes:
        unwritten: paths, each with the path that it links to, or nothing.
        obsolete: paths, each with that of its successor.
        beginning: the checkpoint from which the run goes on. It stays: a job that is run again
            begins there again.
    """

    def __init__(self) -> None:
        self.unwritten: list[tuple[str, str]] = []
        self.obsolete: list[tuple[str, str]] = []
        self.beginning = ""

    def replace(self, path: str, old: str, *, target: str = "") -> None:
        """Note a checkpoint to write, perhaps as a link to `target`, and the one that it
        replaces.
        """
        self.unwritten.append((path, target))
        if old and old not in (path, self.beginning):
            self.obsolete.append((old, path))

    def look_again(self, trainer: TrainerViews) -> None:
        """Drop what is done already, in the state of a run that was killed and goes on."""
        self.obsolete = [each for each in self.obsolete if _is_there(trainer, each[0])]
        self.unwritten = [each for each in self.unwritten if not _is_there(trainer, each[0])]

    def write(self, trainer: TrainerViews, save: Callable[[str], None], *, at_once: bool) -> None:
        """Write the new ones, then remove the old ones; if this run is killed in between, one that
        goes on does it.

        Args:
            trainer: the running trainer.
            save: writes a checkpoint to a path.
            at_once: remove what each replaces before the next is written.
        """
        while self.unwritten:
            path, target = self.unwritten.pop(0)
            if not (target and _link(trainer, target, path)):
                save(path)
            if at_once:
                self.remove_obsolete(trainer)
        self.remove_obsolete(trainer)

    def remove_obsolete(self, trainer: TrainerViews) -> None:
        """Remove what was replaced; not yet if the new one is still to be written, perhaps at a
        window's end.
        """
        if trainer.run.pending_saves:
            return
        unwritten = dict(self.unwritten)
        waiting = []
        for path, successor in self.obsolete:
            if successor in unwritten:
                waiting.append((path, successor))
            else:
                trainer.strategy.checkpoint_io.retire_checkpoint(
                    path, successor, collectives=trainer.session.collectives
                )
        self.obsolete = waiting


def _link(trainer: TrainerViews, target: str, path: str) -> bool:
    """All ranks. Make `path` a link to `target`, atomically. False where that can't be: to a URL,
    to what is still to be written, and in the place of a checkpoint.
    """
    can_be = False
    if trainer.is_global_zero:
        is_free = os.path.islink(path) or not os.path.lexists(path)
        can_be = is_free and os.path.exists(target)
        if can_be:
            folder, name = os.path.split(path)
            # Made under another name and renamed, so that there is a link at every moment.
            temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}")
            os.symlink(os.path.relpath(target, folder), temporary)
            os.replace(temporary, path)
    return bool(trainer.strategy.broadcast(can_be))


def _is_there(trainer: TrainerViews, path: str) -> bool:
    """All ranks. True if a complete checkpoint is at `path`."""
    strategy = trainer.strategy
    return bool(strategy.broadcast(trainer.is_global_zero and strategy.checkpoint_io.exists(path)))
