"""Checkpoints as files: a name that is free, a link, an end. All ranks call these together."""

from __future__ import annotations

import os
import posixpath
import secrets
from typing import TYPE_CHECKING, Any

from core.callbacks.checkpoint_name import EXTENSION

if TYPE_CHECKING:
    from collections.abc import Container


def find_free_path(trainer: Any, folder: str, name: str, *, own: str, taken: Container[str]) -> str:
    """All ranks. `name` in the folder, or else `name-v1`, `name-v2`, ...: what nobody else's checkpoint has.

    Args:
        trainer: the running trainer.
        folder: a local one, or a URL.
        name: without its ending.
        own: a path that is about to be replaced, and may be overwritten.
        taken: paths that are spoken for, though nothing may be there yet.
    """
    path = posixpath.join(folder, name + EXTENSION)
    if trainer.is_global_zero:
        version, exists = 0, trainer.strategy.checkpoint_io.exists
        while path != own and (exists(path) or path in taken):
            version += 1
            path = posixpath.join(folder, f"{name}-v{version}{EXTENSION}")
    return str(trainer.strategy.broadcast(path))


def link_checkpoint(trainer: Any, target: str, path: str) -> None:
    """All ranks. Let `path` point to `target`; at once, if a link is there already.

    Args:
        trainer: the running trainer.
        target: a local checkpoint.
        path: replaced, whatever is there.
    """
    strategy = trainer.strategy
    is_real = trainer.is_global_zero and not os.path.islink(path) and strategy.checkpoint_io.exists(path)
    if strategy.broadcast(is_real):
        remove_checkpoint(trainer, path)
    if trainer.is_global_zero:
        temporary = f"{path}.{secrets.token_hex(4)}"
        os.symlink(os.path.relpath(target, os.path.dirname(path)), temporary)
        os.replace(temporary, path)
    strategy.barrier()


def remove_checkpoint(trainer: Any, path: str) -> None:
    """All ranks. Delete a checkpoint, whole."""
    strategy = trainer.strategy
    strategy.checkpoint_io.remove_checkpoint(path, collectives=strategy.collectives)


def can_link(trainer: Any, target: str) -> bool:
    """All ranks. Whether a link to `target` would lead somewhere: it is no URL, and not still to be written."""
    if "://" in target or "::" in target:
        return False
    return bool(trainer.strategy.broadcast(trainer.is_global_zero and os.path.exists(target)))
