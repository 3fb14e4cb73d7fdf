"""Modules of which a checkpoint gets a part: `fabric.save(..., filter=...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError
from core.fabric.module import FabricModule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from core.contract import Strategy


def filter_modules(
    strategy: Strategy, state: Mapping[str, object], filters: Mapping[str, Callable[[str, Any], bool]]
) -> dict[str, FilteredModule]:
    """The modules that filters name, each with the entries that its filter keeps.

    Raises:
        ConfigurationError: a filter names something else.
    """
    return {name: _filtered(strategy, name, state.get(name), keeps) for name, keeps in filters.items()}


class FilteredModule:
    """A module's state without the entries that aren't to be saved."""

    def __init__(self, strategy: Strategy, module: nn.Module, keeps: Callable[[str, Any], bool]) -> None:
        self._strategy, self._module, self._keeps = strategy, module, keeps

    def state_dict(self) -> dict[str, Any]:
        """The entries that the filter keeps."""
        state = self._strategy.get_module_state_dict(self._module)
        return {name: value for name, value in state.items() if self._keeps(name, value)}


def _filtered(strategy: Strategy, name: str, module: object, keeps: Callable[[str, Any], bool]) -> FilteredModule:
    if not isinstance(module, FabricModule):
        raise ConfigurationError(
            f"save(filter={{{name!r}: ...}}): expected the name of a module in the state that was set up here, and "
            f"there it is {type(module).__name__}."
        )
    return FilteredModule(strategy, module.module, keeps)
