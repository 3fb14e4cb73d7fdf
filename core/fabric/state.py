"""Fabric's wrappers in the state that a user saves and loads, modules of which a checkpoint gets a
part, and those that wait for what is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from core.contract import ConfigurationError
from core.data import map_leaves
from core.fabric.module import FabricModule
from core.fabric.optimizer import FabricOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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
        if isinstance(inner, FabricModule):
            module = inner
    if isinstance(module, FabricModule):
        return module.module
    return module


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
    if isinstance(leaf, FabricOptimizer):
        return leaf.optimizer
    return unwrap_module(leaf)


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


_FILLS = {
    Tensor.uniform_,
    Tensor.normal_,
    Tensor.exponential_,
    Tensor.cauchy_,
    Tensor.log_normal_,
    Tensor.geometric_,
    Tensor.random_,
    Tensor.bernoulli_,
    Tensor.erfinv_,
}
"""The methods that draw first values, and the costly part of torch's truncated normal
distribution.
"""


class EmptyWeights(TorchFunctionMode):
    """Leaves parameters uninitialized: the calls that draw their first values are skipped.

    Buffers and constant fills are initialized as usual, since a checkpoint may leave buffers out.
    So are values that are computed elsewhere and copied, such as orthogonal matrices and, in some
    releases of torch, truncated normal distributions. The random numbers that were not drawn are
    left for later draws.
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Any:
        """Answer a torch call in which some parameter may be filled."""
        kwargs = kwargs or {}
        if func in _FILLS or getattr(func, "__module__", "") == "torch.nn.init":
            for target in (*args[:1], kwargs.get("tensor")):
                if isinstance(target, nn.Parameter):
                    return target
        return func(*args, **kwargs)
