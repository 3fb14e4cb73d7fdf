"""The errors of several optimizers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from core.contract import ModuleError
from core_training.hooks.events import overrides
from core_training.module.optimization import evaluates_loss

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from torch.optim import Optimizer

_MOST_NAMED = 5


def check_several(module: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """All ranks. Refuse several optimizers that can't step together after one backward.

    Args:
        module: whose optimizers they are.
        optimizers: all of them.

    Raises:
        ModuleError: with the reason, and what to do.
    """
    name = type(module).__name__
    number = len(optimizers)
    cure = (
        "Set self.automatic_optimization = False and step them in training_step, through "
        "self.optimizers() and self.manual_backward(loss)."
    )
    for optimizer in filter(evaluates_loss, optimizers):
        raise ModuleError(
            f"{name}.configure_optimizers returned {number} optimizers, and "
            f"{type(optimizer).__name__} evaluates the loss in its step, which the others "
            f"would have no gradients of. {cure}"
        )
    if overrides(module, "optimizer_step"):
        raise ModuleError(
            f"{name}.configure_optimizers returned {number} optimizers, and {name} overrides "
            "optimizer_step, whose closure makes the gradients for one of them. Leave the "
            f"override out. Or: {cure}"
        )
    held = Counter(
        id(one) for each in optimizers for group in each.param_groups for one in group["params"]
    )
    twice = [key for key, parameter in module.named_parameters() if held[id(parameter)] > 1]
    if twice:
        raise ModuleError(
            f"{name}.configure_optimizers returned {number} optimizers, more than one of which "
            f"holds {listed(twice)}: each step would update them as often. Give each parameter to "
            f"one optimizer. Or: {cure}"
        )


def listed(names: Sequence[str]) -> str:
    """Names in a sentence, the first of them if there are many."""
    if len(names) > _MOST_NAMED:
        return f"{', '.join(names[:_MOST_NAMED])} and {len(names) - _MOST_NAMED} more"
    return ", ".join(names)
