"""Callbacks of a Trainer whose module has a model of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core import Callback
from core_transformers.pretrained import (
    config_of,
    load_pretrained,
    refuse_existing,
    save_pretrained,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch
    from torch import nn

    from core import Trainer


class _KeepsConfig(Callback):
    """Leaves the model's config in checkpoints, for `core checkpoint convert`."""

    _config: dict[str, Any] | None = None

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks."""
        self._config = config_of(module)

    def state_dict(self) -> dict[str, Any]:
        """The config, and no setting: another run may have others."""
        return {"config": self._config}


class LoadPretrained(_KeepsConfig):
    """Fills the model from a folder when `fit` begins.

    A run that goes on has its weights from its checkpoint; with `Trainer(save_only="trainable")`
    those that train.
    """

    def __init__(
        self, folder: str | Path, *, strict: bool = True, adapters: str | Path | None = None
    ) -> None:
        """Create the callback.

        Args:
            folder: as for `load_pretrained`.
            strict: likewise.
            adapters: likewise.
        """
        self.folder, self.strict, self.adapters = folder, strict, adapters

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks."""
        if trainer.ckpt_path is None or trainer.options.save_only == "trainable":
            load_pretrained(
                trainer, module, self.folder, strict=self.strict, adapters=self.adapters
            )
        super().on_fit_start(trainer, module)


class SavePretrained(_KeepsConfig):
    """Writes the model for `from_pretrained` when `fit` has ended."""

    def __init__(
        self, folder: str | Path, *, beside: Sequence[Any] = (), dtype: torch.dtype | None = None
    ) -> None:
        """Create the callback.

        Args:
            folder: nothing is there.
            beside: as for `save_pretrained`.
            dtype: likewise.
        """
        self.folder, self.beside, self.dtype = folder, beside, dtype

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks. Refuse a folder that is there before there is work to lose."""
        super().on_fit_start(trainer, module)
        refuse_existing(trainer, self.folder)

    def on_train_end(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks."""
        save_pretrained(trainer, module, self.folder, beside=self.beside, dtype=self.dtype)
