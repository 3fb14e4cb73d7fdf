"""The config of a run of LightningCLI, saved in its folder."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from core import Callback, ConfigurationError, Trainer
from core_lightning.utilities.file_systems import get_filesystem


class SaveConfigCallback(Callback):
    """Writes the config to the folder of logs when a stage begins. Another one there is an error.

    Args:
        overwrite: whether another config may be lost.
        multifile: keep sections that came from files of their own in such files.
        save_to_log_dir: False to save by `save_config` alone.
    """

    def __init__(
        self,
        parser: Any,
        config: Any,
        config_filename: str = "config.yaml",
        overwrite: bool = False,
        multifile: bool = False,
        save_to_log_dir: bool = True,
    ) -> None:
        self.parser, self.config, self.config_filename = parser, config, config_filename
        self.overwrite, self.multifile, self.save_to_log_dir = overwrite, multifile, save_to_log_dir
        self.already_saved = False
        if not save_to_log_dir and type(self).save_config is SaveConfigCallback.save_config:
            raise ValueError(
                "save_to_log_dir=False saves nothing unless a subclass defines save_config."
            )

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """All ranks. Save it, once."""
        if self.already_saved:
            return
        refusal = None
        if trainer.is_global_zero and self.save_to_log_dir:
            refusal = self._save(str(trainer.log_dir))
        if refusal := trainer.strategy.broadcast(refusal):
            raise ConfigurationError(refusal)
        if trainer.is_global_zero:
            self.save_config(trainer, module, stage)
        self.already_saved = True

    def save_config(self, trainer: Trainer, pl_module: nn.Module, stage: str) -> None:
        """Rank 0. Save it elsewhere too. Meant to be overridden."""

    def _save(self, folder: str) -> str | None:
        path, files = os.path.join(folder, self.config_filename), get_filesystem(folder)
        if files.isfile(path) and not self.overwrite:
            return (
                f"{path} holds the config of another run, and would be overwritten. Delete it, or "
                "pass "
                'LightningCLI(save_config_kwargs={"overwrite": True}), or '
                "save_config_callback=None."
            )
        files.makedirs(folder, exist_ok=True)
        self.parser.save(
            self.config, path, skip_unset=False, overwrite=self.overwrite, multifile=self.multifile
        )
        return None
