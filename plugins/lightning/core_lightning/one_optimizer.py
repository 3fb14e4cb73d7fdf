"""The error of Lightning for several optimizers that no module steps itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core import Callback, ModuleError

if TYPE_CHECKING:
    from torch import nn

    from core import Trainer


class OneOptimizer(Callback):
    """Refuses several optimizers in automatic optimization, which `core.Trainer` steps one after the other."""

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """All ranks, when optimizers are made.

        Raises:
            ModuleError: there are several.
        """
        if len(trainer.optimizers) > 1 and getattr(module, "automatic_optimization", True):
            raise ModuleError(
                f"{type(module).__name__}.configure_optimizers returned {len(trainer.optimizers)} optimizers, and "
                "automatic optimization steps one here. Set self.automatic_optimization = False and step them in "
                "training_step, through self.optimizers() and self.manual_backward(loss). Or use core's own Trainer."
            )
