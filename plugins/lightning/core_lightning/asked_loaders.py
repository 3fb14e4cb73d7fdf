"""Draws from the random state as Lightning's Trainer does before the first epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from core import Callback

if TYPE_CHECKING:
    from torch import nn

    from core import Trainer


class AskedLoaders(Callback):
    """Asks training loaders of other classes than torch's for an iterator once, as Lightning does to check them.

    One that draws its order then would shuffle differently under core otherwise.
    """

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Ask them."""
        for loader in _loaders(trainer.train_dataloader):
            if not isinstance(loader, DataLoader):
                iter(loader)


def _loaders(loaders: Any) -> list[Any]:
    if isinstance(loaders, dict):
        return list(loaders.values())
    return list(loaders) if isinstance(loaders, list | tuple) else [loaders]
