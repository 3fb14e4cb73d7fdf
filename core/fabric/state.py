"""Fabric's wrappers in the state that a user saves and loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from core.data import map_leaves
from core.fabric.module import FabricModule
from core.fabric.optimizer import FabricOptimizer

if TYPE_CHECKING:
    from collections.abc import Mapping


def unwrap(data: Any) -> Any:
    """Nested data with the strategy's modules and optimizers in place of Fabric's wrappers around them."""
    return map_leaves(_unwrap_leaf, data, is_leaf=_has_state, plain=False)


def unwrap_module(module: object) -> Any:
    """The user's module, out of Fabric's wrapper, and out of that of `torch.compile` around it."""
    if isinstance(module, nn.Module) and not isinstance(module, FabricModule):
        inner = module._modules.get("_orig_mod")
        module = inner if isinstance(inner, FabricModule) else module
    return module.module if isinstance(module, FabricModule) else module


def copy_values(state: dict[str, object], loaded: Mapping[str, object]) -> None:
    """Copy loaded values into the user's state, except for objects, which were restored in place."""
    for name, value in loaded.items():
        mine = state.get(name)
        # Into the user's own dicts, so that references to them stay good.
        if isinstance(mine, dict) and isinstance(value, dict):
            if mine is not value:
                copy_values(mine, value)
        elif not holds_objects(mine):
            state[name] = value


def holds_objects(data: object) -> bool:
    """True if nested data contains an object that is restored in place."""
    found = False

    def look(leaf: object) -> None:
        nonlocal found
        found |= _has_state(leaf)

    map_leaves(look, data, is_leaf=_has_state, plain=False)
    return found


def _has_state(data: object) -> bool:
    return hasattr(data, "state_dict")


def _unwrap_leaf(leaf: object) -> object:
    return leaf.optimizer if isinstance(leaf, FabricOptimizer) else unwrap_module(leaf)
