"""A warning of what `fit` won't train: layers that `parameters()` misses, and parameters that no
optimizer holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from core_training.settings.warn_at import warn_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.optim import Optimizer

    from core_training.run import Run

_CURE = (
    "; layers of a plain list, dict or tuple belong in nn.ModuleList or nn.ModuleDict, which "
    "checkpoints save"
)
_KNOWN = ("_hparams", "_flat_weights")
"""Attributes of arguments, of which the module may use parts, and of torch's recurrent layers,
which replace them.
"""
_MOST_ITEMS = 1000
"""Of a list that are looked at: one may hold a whole data set."""


def warn_of_untrained(module: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Main process, once there are optimizers. Warn, in one line, of what requires gradients and
    isn't trained.
    """
    held = _held_in(optimizers)
    own = {name: one for name, one in module.named_parameters() if one.requires_grad}
    known = {*held, *map(id, own.values())}
    hidden: dict[str, None] = {}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            for one in _held_by(value):
                is_own = one.requires_grad and one.is_leaf and id(one) not in known
                if is_own and not name.startswith(_KNOWN):
                    hidden[f"{path}.{name}".lstrip(".")] = None
    # fine-tuning leaves batch norms unfrozen, and may add them later
    if len(own) < len(list(module.parameters())):
        for part in module.modules():
            if isinstance(part, _NormBase):
                held.update(map(id, part.parameters()))
    names = list(hidden)
    left_out = [name for name, one in own.items() if id(one) not in held]
    if len(left_out) < len(own):
        names += left_out
    if names:
        from core_training.module.optimizer_errors import listed  # most train all

        warn_at(
            getattr(type(module), "configure_optimizers", None),
            f"{type(module).__name__} will not train {listed([*map(repr, names)])}: no optimizer "
            f"that configure_optimizers returned holds it. Add it to one{_CURE * bool(hidden)}. If "
            "that is meant, requires_grad_(False) on it says so.",
        )


def warn_of_late(run: Run) -> None:
    """One process, after the first batch. Warn of parameters with gradients that came after the
    set-up.
    """
    if run.strategy.world_size > 1 or not run.session.handles:  # ranks are refused them
        return
    held = _held_in(run.strategy.optimizers)
    known = {*run.session.handles[0].original_names.values()}
    late = [
        name
        for name, one in run.module.named_parameters()
        if one.grad is not None and name not in known and id(one) not in held
    ]
    if late:
        from core_training.module.optimizer_errors import listed  # most make all before

        warn_at(
            getattr(type(run.module), "training_step", None),
            f"{type(run.module).__name__} has made {listed([*map(repr, late)])} after its "
            "optimizers, which will not train it. Make it in __init__ or configure_model, or add "
            "it to an optimizer.",
        )


def _held_in(optimizers: Sequence[Optimizer]) -> set[int]:
    return {
        id(one) for each in optimizers for group in each.param_groups for one in group["params"]
    }


def _held_by(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """Tensors of a list, dict or tuple, and parameters of modules in it that are in training
    mode.
    """
    if isinstance(value, Tensor):
        yield value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple) and depth:
        for item in value[:_MOST_ITEMS]:
            if not isinstance(item, nn.Module):
                yield from _held_by(item, depth - 1)
            elif item.training:
                yield from item.parameters()
