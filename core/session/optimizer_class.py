"""The check that the optimizer at hand can go on from a saved optimizer state."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.optim import Optimizer

KEY = "class"
"""Key in a saved state for the class of its optimizer."""

STANDS_FOR = "stands_for"
"""Attribute of an optimizer that a strategy has made in the place of the user's: the user's class."""

FILLED_IN = {"amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"}
"""Options that torch's optimizers fill in where an older release has saved."""


def with_class(state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """The saved state with its class added. A rank that has nothing of the state adds nothing."""
    return {**state, KEY: name_of(_class_of(optimizer))} if state else state


def check(optimizer: Optimizer, saved: Any) -> None:
    """Refuse the state of an optimizer that keeps other things, and warn of one that may.

    Args:
        optimizer: that is to go on.
        saved: its saved state, or a description of it. One without a class is recognized by the options in its groups.

    Raises:
        CheckpointError: another class has saved it; both are named.
    """
    own, groups = _class_of(optimizer), saved.get("param_groups") if isinstance(saved, dict) else None
    name = saved.get(KEY) if isinstance(saved, dict) else None
    if name == name_of(own) or not groups or not all(isinstance(group, dict) for group in groups):
        return
    lacking, strange = _differing_options(optimizer, groups[0])
    # Either of the two alone may be another release of the same class.
    if (lacking and strange) or (name and _are_strangers(own, name)):
        raise CheckpointError(
            f"The state in the checkpoint is of {name or f'an optimizer with the options {strange}'}, and "
            f"{name_of(own)} is to go on from it, which keeps other things. Make the optimizer that the checkpoint was "
            "saved with, or start a new run from its weights: load the module alone."
        )
    if name:
        warnings.warn(
            f"The state in the checkpoint is of {name}, and {name_of(own)} goes on from it, with the options and "
            "tensors that were saved. Make the optimizer that it was saved with if you want another thing.",
            stacklevel=2,
        )


def name_of(kind: type) -> str:
    """Module and name of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _class_of(optimizer: Optimizer) -> type:
    return getattr(optimizer, STANDS_FOR, type(optimizer))


def _differing_options(optimizer: Optimizer, saved: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Options that the optimizer needs and that weren't saved; and those that were and that it doesn't know."""
    own = optimizer.param_groups[0].keys()
    lacking = (own & optimizer.defaults.keys()) - saved.keys() - FILLED_IN
    # Schedulers put `initial_lr` into the groups.
    return sorted(lacking), sorted(saved.keys() - own - FILLED_IN - {"params", "initial_lr"})


def _are_strangers(own: type, saved: str) -> bool:
    """True if both are classes of torch, and neither is a subclass of the other. AdamW is one of Adam."""
    if not (saved.startswith("torch.optim.") and name_of(own).startswith("torch.optim.")):
        return False
    # `mro()[-2]`, the class below `object`, is torch.optim.Optimizer: found without importing torch.
    other = next((kind for kind in _all_kinds(own.mro()[-2]) if name_of(kind) == saved), None)
    return other is not None and not issubclass(own, other) and not issubclass(other, own)


def _all_kinds(root: Any) -> list[type]:
    return [root, *(kind for child in root.__subclasses__() for kind in _all_kinds(child))]
