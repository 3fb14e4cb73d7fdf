"""Modules that aren't what was set up: parameters that are new or were replaced, and states of
which a part was loaded.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from core.contract.errors import CheckpointError, ConfigurationError
from core.session import nested, state_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from core.session.session import Session

# new parameters ---------------------------------------------------------------------------------


def refuse_new(strategy: str, module: nn.Module, *, refreshes: bool) -> Callable[[], None]:
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

    def look(into: nn.Module, newcomers: Iterable[Tensor]) -> None:
        if any(part is into for part in module.modules()):
            for own in newcomers:
                if own not in known and own.requires_grad:
                    hooks.append(own.register_post_accumulate_grad_hook(refuse))

    def look_at_parameter(into: nn.Module, name: str, new: Tensor | None) -> None:
        if new is not None:
            look(into, [new])

    def look_at_module(into: nn.Module, name: str, new: nn.Module | None) -> None:
        if new is not None:
            look(into, new.parameters())

    hooks: list[RemovableHandle] = [
        torchs.register_module_parameter_registration_hook(look_at_parameter),
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


# states of which a part was loaded --------------------------------------------------------------

_MARKS: WeakKeyDictionary[object, tuple[str, list[tuple[int, int]]]] = WeakKeyDictionary()
"""By module or optimizer: the checkpoint, and the identities and versions of its tensors then."""


def mark_half_loaded(session: Session, state: object, path: str) -> None:
    """This rank. Remember what a failed load of the checkpoint `path` may have overwritten."""
    for owner in _owners(session, state):
        _MARKS[owner] = (path, _versions(owner))


def unmark(session: Session, target: object) -> None:
    """This rank. Modules and optimizers were loaded whole."""
    for owner in _owners(session, target):
        _MARKS.pop(owner, None)


def refuse_half_loaded(session: Session, purpose: str, state: object = None) -> None:
    """All ranks. Refuse to go on with modules and optimizers into which a load has failed: they
    hold parts of two states.

    Args:
        session: that has set them up.
        purpose: says with what, as in `"trained"`.
        state: that has them at any place; None for all that were set up.

    Raises:
        CheckpointError: there are some.
    """
    if not _MARKS:
        return
    if state is None:
        state = [*(handle.module for handle in session.handles), *session.strategy.optimizers]
    for owner in _owners(session, state):
        path, versions = _MARKS.get(owner, ("", None))
        # What was changed since has been made good by other means, such as `load_state_dict`.
        if versions == _versions(owner):
            raise CheckpointError(
                f"{type(owner).__name__} can't be {purpose}: the load of {path!r} failed when it "
                "had overwritten it in part. Load another checkpoint into it, or make it anew."
            )


def _owners(session: Session, value: Any) -> Iterator[object]:
    if state_objects.is_module(session, value):
        yield session.handle_of(value).module
    elif state_objects.is_optimizer(session, value):
        yield value
    else:
        for item in nested.items_of(value):
            yield from _owners(session, item)


def _versions(owner: Any) -> list[tuple[int, int]]:
    """Identity of each tensor, and the number of changes that it has seen."""
    if hasattr(owner, "parameters"):
        tensors = [*owner.parameters(), *owner.buffers()]
    else:
        entries = [entry for entry in owner.state.values() if isinstance(entry, dict)]
        tensors = [value for entry in entries for value in entry.values()]
    known = (value for value in tensors if hasattr(value, "_version") and not value.is_inference())
    return [(id(value), value._version) for value in known]
