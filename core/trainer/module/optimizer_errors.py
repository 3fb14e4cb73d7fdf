"""The errors of several optimizers, and of optimizers that take matrices only."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch

from core.contract import ModuleError
from core.trainer.hooks.events import overrides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from torch.optim import Optimizer

_MOST_NAMED = 5


def check_several(module: nn.Module, optimizers: Sequence[Optimizer], evaluating: Sequence[Optimizer]) -> None:
    """All ranks. Refuse several optimizers that can't step together after one backward.

    Args:
        module: whose optimizers they are.
        optimizers: all of them.
        evaluating: those that evaluate the loss themselves.

    Raises:
        ModuleError: with the reason, and what to do.
    """
    name, number = type(module).__name__, len(optimizers)
    cure = (
        "Set self.automatic_optimization = False and step them in training_step, through self.optimizers() and "
        "self.manual_backward(loss)."
    )
    if evaluating:
        raise ModuleError(
            f"{name}.configure_optimizers returned {number} optimizers, and {type(evaluating[0]).__name__} evaluates "
            f"the loss in its step, which the others would have no gradients of. {cure}"
        )
    if overrides(module, "optimizer_step"):
        raise ModuleError(
            f"{name}.configure_optimizers returned {number} optimizers, and {name} overrides optimizer_step, whose "
            f"closure makes the gradients for one of them. Leave the override out. Or: {cure}"
        )
    held = Counter(id(one) for each in optimizers for group in each.param_groups for one in group["params"])
    if twice := [key for key, parameter in module.named_parameters() if held[id(parameter)] > 1]:
        raise ModuleError(
            f"{name}.configure_optimizers returned {number} optimizers, more than one of which holds "
            f"{_listed(twice)}: each step would update them as often. Give each parameter to one optimizer. Or: {cure}"
        )


def name_other_than_matrices(error: ValueError, module: nn.Module) -> None:
    """All ranks. Where torch's Muon has refused parameters, say which ones; it names a shape only.

    Args:
        error: what `configure_optimizers` has raised.
        module: whose parameters they are.

    Raises:
        ModuleError: with their names and shapes, and what to do.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    optimizer = last.tb_frame.f_locals.get("self") if last is not None else None
    if not isinstance(optimizer, torch.optim.Muon):
        return
    given = {id(one) for group in optimizer.param_groups for one in group["params"] if one.ndim != 2}
    named = [f"{key} of shape {tuple(one.shape)}" for key, one in module.named_parameters() if id(one) in given]
    if named:
        raise ModuleError(
            f"{type(module).__name__}.configure_optimizers gave Muon {_listed(named)}, and Muon steps matrices only. "
            "Give the others to another optimizer: return [torch.optim.Muon(matrices), torch.optim.AdamW(others)]."
        ) from error


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
