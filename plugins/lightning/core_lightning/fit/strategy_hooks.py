"""The strategy of a program for Lightning has its module and hooks, and what is assigned to it
holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from core import Callback, Capability, ConfigurationError, Trainer, UnsupportedError
from core_lightning.strategies.strategy_names import STORAGE

_ENGINES = Capability.OWNS_STEP | Capability.COMPILED_STEP | Capability.JOINT_SETUP
_CONFIGS = "lr_scheduler_configs"


class TellsStrategy(Callback):
    """Gives the strategy its module, and calls its hooks, such as `on_train_start`, if it has
    some.
    """

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """All ranks, before the strategy's own setup.

        Raises:
            ConfigurationError: a checkpoint is to be loaded by an override that nothing calls.
        """
        strategy = trainer.strategy
        if trainer.ckpt_path is not None and hasattr(strategy, "load_checkpoint"):
            raise ConfigurationError(
                f"{type(strategy).__name__}.load_checkpoint: nothing calls it here. {STORAGE}"
            )
        vars(strategy)["lightning_module"] = strategy.model = module


def _calling(name: str) -> Callable[..., None]:
    def hook(self: Any, trainer: Trainer, module: nn.Module) -> None:
        own = getattr(trainer.strategy, name, None)
        if own is not None:
            own()

    hook.__name__, hook.__doc__ = name, f"All ranks. Call the strategy's `{name}`, if it has one."
    return hook


for _stage in ("train", "validation", "test", "predict"):
    for _name in (f"on_{_stage}_start", f"on_{_stage}_end"):
        setattr(TellsStrategy, _name, _calling(_name))


class Assigned(Callback):
    """Makes `trainer.strategy.optimizers = [...]` and `.lr_scheduler_configs = [...]` hold from the
    next batch on.
    """

    runs_last = True

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Give the strategy Lightning's name of its schedulers."""
        self._configs = vars(trainer.strategy)[_CONFIGS] = trainer.strategy.lr_schedulers

    def on_train_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Adopt what was assigned since the last batch."""
        self._adopt(trainer)

    def on_train_batch_start(
        self, trainer: Trainer, module: nn.Module, batch: Any, batch_idx: int
    ) -> None:
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
                f"trainer.strategy.optimizers was assigned, and {type(strategy).__name__} keeps "
                "the optimizers that it was set up with. Return others from configure_optimizers.",
                capability=found,
            )
        step.optimizers = strategy.optimizers
