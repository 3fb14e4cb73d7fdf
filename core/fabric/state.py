"""Fabric's wrappers in the state that a user saves and loads, and modules of which a checkpoint
gets a part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from core.contract import ConfigurationError
from core.data import map_leaves
from core.fabric.module import FabricModule
from core.fabric.optimizer import FabricOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core.contract import Strategy


def unwrap(data: Any) -> Any:
    """Nested data with the strategy's modules and optimizers in place of Fabric's wrappers around
    them.
    """
    return map_leaves(_unwrap_leaf, data, is_leaf=_has_state, plain=False)


def unwrap_module(module: object) -> Any:
    """The user's module, out of Fabric's wrapper, and out of that of `torch.compile` around it."""
    if isinstance(module, nn.Module) and not isinstance(module, FabricModule):
        inner = module._modules.get("_orig_mod")
        module = inner if isinstance(inner, FabricModule) else module
    return module.module if isinstance(module, FabricModule) else module


def copy_values(state: dict[str, object], loaded: Mapping[str, object]) -> None:
    """Copy loaded values into the user's state, except for objects, which were restored in
    place.
    """
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


def filter_modules(
    strategy: Strategy,
    state: Mapping[str, object],
    filters: Mapping[str, Callable[[str, Any], bool]],
) -> dict[str, FilteredModule]:
    """The modules that filters name, each with the entries that its filter keeps.

    Raises:
        ConfigurationError: a filter names something else.
    """
    filtered = {}
    for name, keeps in filters.items():
        module = state.get(name)
        if not isinstance(module, FabricModule):
            raise ConfigurationError(
                f"save(filter={{{name!r}: ...}}): expected the name of a module in the state that "
                f"was set up here, and there it is {type(module).__name__}."
            )
        filtered[name] = FilteredModule(strategy, module.module, keeps)
    return filtered


class FilteredModule:
    """A module's state without the entries that aren't to be saved."""

    def __init__(
        self, strategy: Strategy, module: nn.Module, keeps: Callable[[str, Any], bool]
    ) -> None:
        self._strategy, self._module, self._keeps = strategy, module, keeps

    def state_dict(self) -> dict[str, Any]:
        """The entries that the filter keeps."""
        state = self._strategy.get_module_state_dict(self._module)
        return {name: value for name, value in state.items() if self._keeps(name, value)}
