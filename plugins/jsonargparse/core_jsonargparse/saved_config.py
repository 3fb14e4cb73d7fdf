"""The config of a run, saved in its folder."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from core import Callback, ConfigurationError

if TYPE_CHECKING:
    from torch import nn

    from core import Trainer

FILE = "config.yaml"


class SavedConfig(Callback):
    """Writes the config of a run to `config.yaml` in `trainer.log_dir`, beside the folder of
    checkpoints, on rank 0.

    A run that goes on in its folder leaves the first config there, and writes its own as
    `config_1.yaml`, and so on.
    """

    def __init__(self, text: str, *, overwrite: bool) -> None:
        """Create the callback.

        Args:
            text: the config, as YAML.
            overwrite: whether another config in the folder may be lost.
        """
        self._text, self._overwrite = text, overwrite

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Write the config before anything is done, unless the folder follows from the
        checkpoint.
        """
        if stage == "fit" and trainer.ckpt_path is None:
            self._save_once(trainer)

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Write it for a run that goes on, whose logger knows its folder by now."""
        if trainer.ckpt_path is not None:
            self._save_once(trainer)

    def _save_once(self, trainer: Trainer) -> None:
        refusal = None
        if trainer.is_global_zero:
            refusal = self._save(trainer.log_dir, goes_on=trainer.ckpt_path is not None)
        if refusal := trainer.strategy.broadcast(refusal):
            raise ConfigurationError(refusal)

    def _save(self, folder: str, *, goes_on: bool) -> str | None:
        from fsspec.core import url_to_fs

        # fsspec would take the %20 of a file:// URL for a part of the name.
        files, root = url_to_fs(unquote(folder) if folder.startswith("file:") else folder)
        path = posixpath.join(root, FILE)
        if files.exists(path) and files.cat(path).decode() != self._text and not self._overwrite:
            if not goes_on:
                return (
                    f"{posixpath.join(folder, FILE)} holds the config of another run, and would be "
                    "overwritten. Use another default_root_dir, or a logger with a folder for each "
                    "run; or pass overwrite_config=True to cli_for."
                )
            path = _free(files, root)
        files.makedirs(root, exist_ok=True)
        files.pipe(path, self._text.encode())
        return None


def _free(files: Any, root: str) -> str:
    number = 1
    while files.exists(path := posixpath.join(root, f"config_{number}.yaml")):
        number += 1
    return path
