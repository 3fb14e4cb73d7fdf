"""Modules that aren't what was set up: their parameters are new, or were replaced."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from core.contract.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

# new parameters ---------------------------------------------------------------------------------


def refuse_new(strategy: str, module: nn.Module, refreshes: bool) -> Callable[[], None]:
    """Make it an error that a parameter gets gradients which comes into the module from now on: no
    strategy shards it, or averages its gradients.

    torch's hooks are called where something is put into a module, and never in a step.

    Args:
        strategy: the name of its class.
        module: the user's own.
        refreshes: the strategy has its own `refresh_modules`.

    Returns:
        Undoes it.
    """
    from torch.nn.modules import module as torchs

    known = set(module.parameters())

    def refuse(parameter: Tensor) -> None:
        for name, own in module.named_parameters():
            if own is parameter:
                raise ConfigurationError(_came_late(strategy, name, refreshes))

    def look(into: nn.Module, newcomers: Iterable[Tensor | None]) -> None:
        if any(part is into for part in module.modules()):
            for own in newcomers:
                if own is not None and own not in known and own.requires_grad:
                    hooks.append(own.register_post_accumulate_grad_hook(refuse))

    def look_at_module(into: nn.Module, name: str, new: nn.Module | None) -> None:
        if new is not None:
            look(into, new.parameters())

    hooks: list[RemovableHandle] = [
        torchs.register_module_parameter_registration_hook(
            lambda into, name, new: look(into, [new])
        ),
        torchs.register_module_module_registration_hook(look_at_module),
    ]

    def undo() -> None:
        for hook in hooks:
            hook.remove()

    return undo


def _came_late(strategy: str, name: str, refreshes: bool) -> str:
    cure = "Put it into the module before: where the module is made, or in configure_model."
    if refreshes:
        cure = (
            "Put it into the module before fit or in on_train_epoch_start, where the module is "
            "wrapped anew if the strategy's options allow that; in a loop of your own, call "
            "fabric.setup with your own module again."
        )
    return (
        f"The parameter {name!r} gets gradients, and has come into the module after it was set up. "
        f"{strategy} averages gradients of the others only, so that the ranks would drift apart. "
        f"{cure}"
    )


# replaced parameters ----------------------------------------------------------------------------


class ReplacedParameters:
    """Parameters that another object has taken the place of, as where a device can't have the
    memory of the old one: for each, as long as it lives, its module and its name there.

    An optimizer that was made before holds the old ones. It would step them without an error, and
    train nothing.

    Args:
        place: makes of a piece of an optimizer's state one for the parameter that it gets.
    """

    def __init__(self, place: Callable[[Any, Tensor], Any]) -> None:
        self._place = place
        self._known: dict[int, tuple[Callable[[], Any], Callable[[], Any], str]] = {}

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
        for group in optimizer.param_groups:
            for index, parameter in enumerate(group["params"]):
                current = self._current(parameter)
                if current is parameter:
                    continue
                group["params"][index] = current  # in place: an optimizer may keep the list itself
                if parameter in optimizer.state:
                    entry = optimizer.state.pop(parameter)
                    optimizer.state[current] = {
                        key: self._place(leaf, current) for key, leaf in entry.items()
                    }

    def _current(self, parameter: Tensor) -> Tensor:
        if id(parameter) in self._known:
            reference, owner, name = self._known[id(parameter)]
            module = owner()
            # The identity of a parameter that is gone may be another one's by now.
            if module is not None and reference() is parameter:
                current: Tensor = module.get_parameter(name)
                return current
        return parameter


def beside(leaf: Any, parameter: Tensor) -> object:
    """A piece of an optimizer's state on its parameter's device, if it has its shape: step counts
    stay as they are.
    """
    if getattr(leaf, "shape", None) != parameter.shape:
        return leaf
    return leaf.to(parameter.device)


def _reference(parameter: Tensor) -> Callable[[], Any]:
    """A weak reference to a parameter; a strong one on meta, which takes no memory and can't have
    weak ones here.
    """
    if parameter.is_meta:
        return lambda: parameter
    return weakref.ref(parameter)
