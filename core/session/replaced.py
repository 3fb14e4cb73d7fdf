"""Parameters that another object has taken the place of, as where a device can't have the memory of
the old one.

An optimizer that was made before holds the old ones. It would step them without an error, and train
nothing.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, nn
    from torch.optim import Optimizer


class ReplacedParameters:
    """The replaced parameters: for each such object, as long as it lives, its module and its name
    there.

    Args:
        place: makes of a piece of an optimizer's state one for the parameter that it gets.
    """

    def __init__(self, place: Callable[[Any, Tensor], Any]) -> None:
        self._place = place
        self._known: dict[
            int, tuple[Callable[[], object], Callable[[], nn.Module | None], str]
        ] = {}

    def __bool__(self) -> bool:
        """True if any was ever remembered."""
        return bool(self._known)

    def remember(
        self, module: nn.Module, named: Iterable[tuple[str, Tensor]] | None = None
    ) -> None:
        """Record parameters of a module, before they are replaced or while the old ones live.

        Args:
            module: that has other ones under the same names afterwards.
            named: the old ones; None for all that it has now.
        """
        if named is None:
            named = module.named_parameters()
        for name, parameter in named:
            self._known[id(parameter)] = (_reference(parameter), weakref.ref(module), name)

    def rebind(self, optimizer: Optimizer) -> None:
        """Replace the optimizer's parameters by their successors, which get the state of the old
        ones.
        """
        for group in optimizer.param_groups:  # in place: an optimizer may keep the list itself
            group["params"][:] = [
                self._rebound(optimizer, parameter) for parameter in group["params"]
            ]

    def _rebound(self, optimizer: Optimizer, parameter: Tensor) -> Tensor:
        current = self._current(parameter)
        if current is not parameter and parameter in optimizer.state:
            entry = optimizer.state.pop(parameter)
            optimizer.state[current] = {
                key: self._place(leaf, current) for key, leaf in entry.items()
            }
        return current

    def _current(self, parameter: Tensor) -> Tensor:
        if id(parameter) not in self._known:
            return parameter
        reference, owner, name = self._known[id(parameter)]
        module = owner()
        # The identity of a parameter that is gone may be another one's by now.
        return (
            parameter
            if module is None or reference() is not parameter
            else module.get_parameter(name)
        )


def beside(leaf: Any, parameter: Tensor) -> object:
    """A piece of an optimizer's state on its parameter's device, if it has its shape: step counts
    stay as they are.
    """
    return leaf.to(parameter.device) if getattr(leaf, "shape", None) == parameter.shape else leaf


def _reference(parameter: Tensor) -> Callable[[], object]:
    """A weak reference to a parameter; a strong one on meta, which takes no memory and can't have
    weak ones here.
    """
    return (lambda: parameter) if parameter.is_meta else weakref.ref(parameter)
