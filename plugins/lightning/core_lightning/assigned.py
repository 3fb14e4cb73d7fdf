"""Optimizers and schedulers that a program assigns to the strategy while `fit` runs."""

from __future__ import annotations

from typing import Any

from torch import nn

from core import Callback, Capability, Trainer, UnsupportedError

_ENGINES = Capability.OWNS_STEP | Capability.COMPILED_STEP | Capability.JOINT_SETUP
_CONFIGS = "lr_scheduler_configs"


class Assigned(Callback):
    """Makes `trainer.strategy.optimizers = [...]` and `.lr_scheduler_configs = [...]` hold from the next batch on."""

    runs_last = True

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Give the strategy Lightning's name of its schedulers."""
        self._configs = vars(trainer.strategy)[_CONFIGS] = trainer.strategy.lr_schedulers

    def on_train_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Adopt what was assigned since the last batch."""
        self._adopt(trainer)

    def on_train_batch_start(self, trainer: Trainer, module: nn.Module, batch: Any, batch_idx: int) -> None:
        """Likewise."""
        self._adopt(trainer)

    def _adopt(self, trainer: Trainer) -> None:
        strategy, step = trainer.strategy, trainer.running_step
        own = vars(strategy)
        if own.get(_CONFIGS) is not self._configs:
            strategy.lr_schedulers = own[_CONFIGS]
        self._configs = own[_CONFIGS] = strategy.lr_schedulers
        if step is None or step.manual or step.optimizers is strategy.optimizers:
            return
        if found := _ENGINES & strategy.capabilities:
            raise UnsupportedError(
                f"trainer.strategy.optimizers was assigned, and {type(strategy).__name__} keeps the optimizers that it "
                "was set up with. Return others from configure_optimizers.",
                capability=found,
            )
        step.optimizers = strategy.optimizers
