"""Methods that a module and the callbacks of a Trainer have for a stage, and that are others under Lightning."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from core import Callback, ModuleError, Trainer
from core.contract import empty_hook

_LOGS = ("log", "log_dict")
_OF_CALLBACKS = ("on_exception", "on_sanity_check_start", "on_sanity_check_end")
_MAKES = "configure_optimizers"


class ReplacedMethods(Callback):
    """Replaces methods before the `setup` of the callbacks themselves, unless the object has its own.

    Callbacks get the module's `log` and `log_dict`. Methods of a module that have the name of a callback's hook aren't
    called. Its `configure_optimizers` may return one scheduler, or its dict, beside the list of optimizers, which are
    several only where it steps them itself: `core.Trainer` would step one after the other.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Replace them."""
        for name in _LOGS:
            for callback in trainer.callbacks:
                if hasattr(module, name) and not hasattr(callback, name):
                    self._replace(callback, name, getattr(module, name))
        for name in _OF_CALLBACKS:
            if (method := getattr(module, name, None)) is not None:
                self._replace(module, name, empty_hook(partial(method)))
        if stage == "fit" and (method := getattr(module, _MAKES, None)) is not None:
            self._replace(module, _MAKES, partial(_listed, method))

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        if name not in vars(owner):
            vars(owner)[name] = value
            self._replaced.append((owner, name, value))

    def on_fit_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Refuse several optimizers in automatic optimization."""
        if len(trainer.optimizers) > 1 and getattr(module, "automatic_optimization", True):
            raise ModuleError(
                f"{type(module).__name__}.configure_optimizers returned {len(trainer.optimizers)} optimizers, and "
                "automatic optimization steps one here. Set self.automatic_optimization = False and step them in "
                "training_step, through self.optimizers() and self.manual_backward(loss). Or use core's own Trainer."
            )

    def teardown(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Remove them, so that no callback keeps the module."""
        for owner, name, value in self._replaced:
            if vars(owner).get(name) is value:
                del vars(owner)[name]
        self._replaced = []


def _listed(method: Any) -> Any:
    made = method()
    if not isinstance(made, list | tuple) or len(made) != 2 or not isinstance(made[0], list):
        return made
    optimizers, schedulers = made
    is_pair = optimizers and all(isinstance(each, Optimizer) for each in optimizers)
    return (optimizers, [schedulers]) if is_pair and not isinstance(schedulers, list | tuple) else made
