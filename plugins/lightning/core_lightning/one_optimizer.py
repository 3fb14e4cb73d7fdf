"""The forms of what `configure_optimizers` returns, as Lightning takes them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

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


class ReturnedOptimizers(Callback):
    """Accepts a `configure_optimizers` that returns one scheduler, or its dict, beside the list of optimizers."""

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Stand before the method for `fit`."""
        if stage == "fit" and (method := getattr(module, _MAKES, None)) is not None and _MAKES not in vars(module):
            vars(module)[_MAKES] = partial(_listed, method)

    def teardown(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Step aside."""
        if isinstance(vars(module).get(_MAKES), partial):
            del vars(module)[_MAKES]


_MAKES = "configure_optimizers"


def _listed(method: Any) -> Any:
    made = method()
    if not isinstance(made, list | tuple) or len(made) != 2 or not isinstance(made[0], list):
        return made
    optimizers, schedulers = made
    is_pair = optimizers and all(isinstance(each, Optimizer) for each in optimizers)
    return (optimizers, [schedulers]) if is_pair and not isinstance(schedulers, list | tuple) else made
