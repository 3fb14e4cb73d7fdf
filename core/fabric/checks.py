"""Refusals of what can't be set up, saved or loaded, before anything happens."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Optimizer

from core.contract import ConfigurationError, ModuleError
from core.fabric.module import FabricModule
from core.fabric.optimizer import FabricOptimizer

if TYPE_CHECKING:
    from core.contract import Strategy


def check_state(call: str, path: object, state: object) -> None:
    """Refuse what isn't a path and a dict."""
    if isinstance(state, Mapping) and isinstance(path, str | os.PathLike):
        return
    given = f"{type(path).__name__}, {type(state).__name__}"
    raise ConfigurationError(
        f"fabric.{call}({given}): expected a path first, and then a dict of what it holds, as in "
        f"fabric.{call}('last.ckpt', {{'model': model, 'optimizer': optimizer}})."
    )


def check_module(module: object) -> None:
    """Refuse what isn't a module of the user's own."""
    if isinstance(module, FabricModule):
        raise ModuleError(
            f"setup: this {type(module.module).__name__} was set up already. "
            "Pass the module that you made, and once only."
        )
    if not isinstance(module, nn.Module):
        raise ModuleError(f"setup: expected an nn.Module first, got {type(module).__name__}.")


def check_trains(strategy: Strategy, optimizers: Sequence[object]) -> None:
    """Refuse optimizers where the precision only evaluates."""
    if optimizers and not strategy.precision_plugin.trains:
        raise ConfigurationError(
            f"precision={strategy.precision_plugin.name!r} evaluates and predicts, and can't "
            "train. Set the module up without optimizers, or use another precision."
        )


def check_optimizers(optimizers: Sequence[object]) -> None:
    """Refuse what isn't an optimizer of the user's own."""
    for optimizer in optimizers:
        if isinstance(optimizer, FabricOptimizer):
            raise ConfigurationError(
                f"This {type(optimizer.optimizer).__name__} was set up already. "
                "Pass the optimizer that you made, and once only."
            )
        if not isinstance(optimizer, Optimizer):
            raise ConfigurationError(
                f"Expected a torch.optim.Optimizer, got {type(optimizer).__name__}. Pass each "
                "optimizer as an argument of its own: fabric.setup(model, optimizer_1, "
                "optimizer_2); a scheduler as scheduler=..."
            )


def refuse_lost(model: FabricModule, optimizers: Sequence[Optimizer], strategy: Strategy) -> None:
    """Make it an error, in the first step, that nobody has kept the module that `setup` returned.

    Whoever has can call it in any way, or none. Where the strategy or precision changes no call,
    nothing is lost.
    """
    is_bare = strategy.forward_context() is None and not strategy.precision_plugin.converts_input
    if model.wrapped is model.module and is_bare:
        return
    kept, taken, own = weakref.ref(model), model.taken, weakref.ref(model.module)

    def check(*_: object) -> None:
        for hook in hooks:
            hook.remove()
        is_set_up = any(handle.module is own() for handle in strategy.session.handles)
        if is_set_up and kept() is None and not taken:
            raise ModuleError(
                f"Nothing has kept what fabric.setup returned: the {type(own()).__name__} that you "
                f"made is trained without {type(strategy).__name__} and "
                f"precision={strategy.precision_plugin.name!r}. Write model, optimizer = "
                "fabric.setup(model, optimizer), call model(...) and step that optimizer."
            )

    hooks = [optimizer.register_step_pre_hook(check) for optimizer in optimizers]
