"""Optimizers that were made before their parameters were cut into shards.

`fully_shard` puts another object in the place of every parameter. An optimizer that holds the old ones would step them
without an error, and train nothing.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from core_fsdp.state import placed_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn
    from torch.optim import Optimizer


class ReplacedParameters:
    """The replaced parameters: for each such object, as long as it lives, its module and its name there."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Callable[[], Any], Callable[[], nn.Module | None], str]] = {}

    def __bool__(self) -> bool:
        """True if any module was ever set up."""
        return bool(self._known)

    def remember(self, module: nn.Module) -> None:
        """Take down the parameters of a module, before they are replaced."""
        for name, parameter in module.named_parameters():
            self._known[id(parameter)] = (_reference(parameter), weakref.ref(module), name)

    def rebind(self, optimizer: Optimizer) -> None:
        """Let the optimizer hold what stands in the place of its parameters now, with the state that it has of them."""
        for group in optimizer.param_groups:  # in place: an optimizer may keep the list itself
            group["params"][:] = [self._rebound(optimizer, parameter) for parameter in group["params"]]

    def _rebound(self, optimizer: Optimizer, parameter: Tensor) -> Tensor:
        current = self._current(parameter)
        if current is not parameter and parameter in optimizer.state:
            entry = optimizer.state.pop(parameter)
            optimizer.state[current] = {key: placed_state(leaf, current) for key, leaf in entry.items()}
        return current

    def _current(self, parameter: Tensor) -> Tensor:
        if id(parameter) not in self._known:
            return parameter
        reference, owner, name = self._known[id(parameter)]
        module = owner()
        # The identity of a parameter that is gone may be another one's by now.
        return parameter if module is None or reference() is not parameter else module.get_parameter(name)


def _reference(parameter: Tensor) -> Callable[[], Any]:
    """A weak reference to a parameter; a strong one on meta, which takes no memory and can't have weak ones here."""
    return (lambda: parameter) if parameter.is_meta else weakref.ref(parameter)
