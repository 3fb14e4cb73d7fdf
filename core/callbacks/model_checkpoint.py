"""Writes checkpoints while training goes on."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from core.callbacks.callback import Callback

if TYPE_CHECKING:
    from torch import nn


class ModelCheckpoint(Callback):
    """Saves a checkpoint at the end of training."""

    runs_last = True

    def __init__(self, dirpath: str | None = None) -> None:
        """Say where checkpoints go.

        Args:
            dirpath: a folder or URL; None is `checkpoints` in the logger's folder, or in `default_root_dir`.
        """
        self.dirpath = dirpath
        self.last_model_path = ""

    def on_train_end(self, trainer: Any, module: nn.Module) -> None:
        """Save, under a name that tells epoch and step."""
        folder = self.dirpath or self._default_folder(trainer)
        path = posixpath.join(folder, f"epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt")
        trainer.save_checkpoint(path)
        self.last_model_path = path

    def _default_folder(self, trainer: Any) -> str:
        log_dir = next((logger.log_dir for logger in trainer.loggers if logger.log_dir), None)
        return posixpath.join(log_dir or trainer.default_root_dir, "checkpoints")

    def state_dict(self) -> dict[str, Any]:
        """Where the last checkpoint is."""
        return {"last_model_path": self.last_model_path}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.last_model_path = state["last_model_path"]
