"""Files of checkpoints: free paths, links, removal, and the best k. All ranks call the functions
together.
"""

from __future__ import annotations

import json
import math
import os
import posixpath
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from core.contract import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from core_training.views.trainer_views import TrainerViews

_REMOVAL_S = 60.0
"""Seconds in which a checkpoint is removed, after which no link takes its place."""


def find_free_path(
    trainer: TrainerViews, folder: str, names: Iterable[str], *, own: str, taken: Container[str]
) -> str:
    """All ranks. A path that no other checkpoint has: the first such name in the folder.

    Args:
        trainer: the running trainer.
        folder: a local one, or a URL.
        names: to try, without an end.
        own: the path of the checkpoint that is replaced, which may be used again.
        taken: paths that are reserved, though nothing may be there yet.
    """
    path = ""
    if trainer.is_global_zero:
        exists = trainer.strategy.checkpoint_io.exists
        paths = (posixpath.join(folder, name) for name in names)
        path = next(path for path in paths if path == own or not (exists(path) or path in taken))
    return str(trainer.strategy.broadcast(path))


def link_checkpoint(trainer: TrainerViews, target: str, path: str) -> None:
    """All ranks. Make `path` a link to `target`; atomically, if a link is there already.

    Args:
        trainer: the running trainer.
        target: a local checkpoint.
        path: replaced if it is a link; a checkpoint that is there stays where `target` is damaged.
    """
    strategy = trainer.strategy
    is_real = (
        trainer.is_global_zero and not os.path.islink(path) and strategy.checkpoint_io.exists(path)
    )
    if strategy.broadcast(is_real):
        retire_checkpoint(trainer, path, target)
    if trainer.is_global_zero and _is_free(trainer, path):
        folder, name = os.path.split(path)
        # Made under another name and renamed, so that there is a link at every moment.
        temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}")
        os.symlink(os.path.relpath(target, folder), temporary)
        os.replace(temporary, path)
    strategy.barrier()


def _is_free(trainer: TrainerViews, path: str) -> bool:
    """Rank 0. True if nothing but a link is at `path`, once a CheckpointIO that removes in the
    background has.
    """
    end_s = time.monotonic() + _REMOVAL_S
    while os.path.lexists(path) and not os.path.islink(path):
        if trainer.strategy.checkpoint_io.exists(path) or time.monotonic() > end_s:
            return False
        time.sleep(0.01)
    return True


def retire_checkpoint(trainer: TrainerViews, path: str, successor: str) -> None:
    """All ranks. Delete a checkpoint, once what replaces it has been verified."""
    strategy = trainer.strategy
    strategy.checkpoint_io.retire_checkpoint(
        path, successor, collectives=trainer.session.collectives
    )


def is_there(trainer: TrainerViews, path: str) -> bool:
    """All ranks. True if a complete checkpoint is at `path`."""
    strategy = trainer.strategy
    return bool(strategy.broadcast(trainer.is_global_zero and strategy.checkpoint_io.exists(path)))


def refuse_other_form(trainer: TrainerViews, paths: Iterable[str]) -> None:
    """All ranks. Refuse paths at which no checkpoint can be replaced: a folder by a file, or a file
    by a folder.

    Raises:
        ConfigurationError: with the first of them.
    """
    checkpoint_io = trainer.strategy.checkpoint_io  # or one within, which writes in the background
    writes_folder = getattr(
        getattr(checkpoint_io, "checkpoint_io", checkpoint_io), "writes_folder", None
    )
    there = [
        path
        for path in paths
        if trainer.is_global_zero and os.path.exists(path) and not os.path.islink(path)
    ]
    unlike = [
        path
        for path in there
        if writes_folder in (True, False) and os.path.isdir(path) != writes_folder
    ]
    if found := trainer.strategy.broadcast(unlike[:1]):
        own, other = ("folder", "file") if writes_folder else ("file", "folder")
        raise ConfigurationError(
            f"ModelCheckpoint would save {found[0]!r} as a {own}, and a {other} is there, of a run "
            f"with another CheckpointIO: a {own} doesn't take its place. Move it, and go on from "
            "there by ckpt_path='...'; or give ModelCheckpoint another dirpath or filename; or "
            f"pass plugins={'torch' if writes_folder else None!r}."
        )


def clean_up(trainer: TrainerViews, folder: str) -> None:
    """Rank 0 alone. Delete what a run that was killed has left in a folder."""
    if trainer.is_global_zero and ("://" in folder or "::" in folder or os.path.isdir(folder)):
        from core.checkpoint import sweep_folder

        sweep_folder(folder)


def can_link(trainer: TrainerViews, target: str) -> bool:
    """All ranks. True if a link to `target` would lead somewhere: it is no URL, and not still to be
    written.
    """
    if "://" in target or "::" in target:
        return False
    return bool(trainer.strategy.broadcast(trainer.is_global_zero and os.path.exists(target)))


@dataclass(slots=True)
class TopKCheckpoints:
    """The best checkpoints by score, `capacity` at most.

    Attributes:
        mode: `"min"` if less is better, `"max"` if more is.
        capacity: number of checkpoints to keep; -1 for all.
        scores: of each that is kept, by path, in the order in which they were written.
    """

    mode: Literal["min", "max"]
    capacity: int
    scores: dict[str, float] = field(default_factory=dict)

    def accepts(self, score: float) -> bool:
        """True if a checkpoint of this score would be kept. A score that isn't a number is the
        worst.
        """
        if self.capacity < 0 or len(self.scores) < self.capacity:
            return True
        return self.capacity > 0 and self._rank(score) < self._rank(self.scores[self.worst_path])

    def add(self, path: str, score: float) -> str | None:
        """Add a checkpoint. Returns the path of the one to prune for it, if any."""
        # A checkpoint that is overwritten makes room by itself.
        self.scores.pop(path, None)
        evicted = self.worst_path if 0 <= self.capacity <= len(self.scores) else None
        if evicted is not None:
            del self.scores[evicted]
        self.scores[path] = self.worst_score if math.isnan(score) else score
        return evicted

    def to_yaml(self) -> str:
        """A line for each that is kept: its path and its score."""
        # JSON's texts are YAML's too.
        return "".join(
            f"{json.dumps(path)}: {_yaml_number(score)}\n" for path, score in self.scores.items()
        )

    @property
    def worst_score(self) -> float:
        """The worst possible score."""
        return math.inf if self.mode == "min" else -math.inf

    @property
    def best_path(self) -> str:
        """Path of the best; of several equally good ones, the first. Empty if there is none."""
        return min(self.scores, key=lambda path: self._rank(self.scores[path]), default="")

    @property
    def worst_path(self) -> str:
        """Path of the one to prune next; of several equally bad ones, the first. Empty if there is
        none.
        """
        return max(self.scores, key=lambda path: self._rank(self.scores[path]), default="")

    def _rank(self, score: float) -> float:
        if math.isnan(score):
            return math.inf
        return score if self.mode == "min" else -score


def _yaml_number(value: float) -> str:
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    return repr(float(value))
