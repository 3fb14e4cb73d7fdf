"""Objects that stand for their state in what is saved, such as a module: taken apart, and restored
in place.

Nothing here needs to know torch's classes: a strategy knows its own modules and optimizers.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

from core.contract.errors import CoreError
from core.session import mismatch, module_tree, nested, same_class

if TYPE_CHECKING:
    from collections.abc import Collection

    from core.session.session import Session


_OWN_KINDS = frozenset({dict, list, tuple, OrderedDict, Counter})
_SCHEDULER = "torch.optim.lr_scheduler.LRScheduler"


class UserData(dict[str, Any]):
    """A dict that a user's hook has filled. Objects in it don't stand for their states: a
    CheckpointIO refuses them.
    """


def to_states(session: Session, value: Any) -> Any:
    """All ranks. Replace modules, optimizers and all objects with a `state_dict()` by their states,
    nested ones too.

    Nothing in a `UserData` is replaced.
    """
    kind = type(value)
    if kind in nested.PLAIN:
        return value
    if kind is UserData:
        return dict(value)
    # What was set up here comes before the general case: it has a `state_dict`, too.
    if is_module(session, value):
        return session.strategy.get_module_state_dict(value)
    if is_optimizer(session, value):
        return same_class.with_class(session.strategy.get_optimizer_state_dict(value), value)
    if callable(getattr(value, "state_dict", None)):
        state = value.state_dict()
        if is_scheduler(value):
            return {**state, same_class.SCHEDULER_KEY: same_class.describe_scheduler(value)}
        # A module that wasn't set up here, such as a metric, may be compiled all the same.
        if hasattr(value, "_modules"):
            return module_tree.to_canonical(state)
        return state
    if isinstance(value, dict) and _comes_back(kind, value.values()):
        states = {key: to_states(session, item) for key, item in value.items()}
        if kind in _OWN_KINDS:
            return kind(states)
        return states
    if isinstance(value, list | tuple) and _comes_back(kind, value):
        items = nested.map_items(lambda item: to_states(session, item), value)
        if isinstance(value, tuple):
            return tuple(items)
        return list(items)
    return value


def _comes_back(kind: type, items: Collection[object]) -> bool:
    """True if a container of this class can be loaded as it was.

    One of the user's own class, such as a named tuple, can't, unless it holds only objects, which
    are restored in place: a CheckpointIO refuses it.
    """
    if kind in _OWN_KINDS:
        return True
    return bool(items) and all(hasattr(item, "state_dict") for item in items)


def restore(session: Session, target: Any, saved: Any, strict: bool, place: str) -> bool:
    """All ranks. Restore what was saved at `place` in `target`. Returns whether that could be done
    in place.
    """
    if is_module(session, target):
        session.strategy.load_module_state_dict(target, saved, strict=strict)
    elif is_optimizer(session, target):
        state = _without(same_class.OPTIMIZER_KEY, saved)
        session.strategy.load_optimizer_state_dict(target, state)
    elif callable(getattr(target, "load_state_dict", None)):
        try:
            if hasattr(target, "_modules"):
                mismatch.load(target, saved, strict=strict)
            else:
                if is_scheduler(target):
                    saved = _without(same_class.SCHEDULER_KEY, saved)
                target.load_state_dict(saved)
        except (CoreError, OSError, MemoryError):
            raise
        except Exception as error:  # whatever the user's own method raises
            reason = f"its load_state_dict raised {type(error).__name__}: {error}"
            raise same_class.wrong_kind(
                place, saved, f"a state of {type(target).__name__} ({reason})"
            ) from error
    elif nested.are_alike(target, saved):
        restored = {
            key: restore(session, item, part, strict, f"{place}[{key!r}]")
            for key, item, part in nested.pairs(target, saved)
        }
        # A sequence counts as restored if each item was: otherwise the caller takes what was saved
        # in its place.
        if not isinstance(target, dict):
            return all(restored.values())
        target.update({key: part for key, part in saved.items() if not restored.get(key)})
    else:
        return False
    return True


def check_kinds(session: Session, target: Any, saved: Any, place: str = "state") -> None:
    """Check, before anything is restored, that what was saved is of the kind of what it is restored
    into.

    A module, optimizer or scheduler needs a dict, a tensor a tensor, and a container of any of
    these one like it; optimizers and schedulers can go on from what their own class has saved.

    Raises:
        CheckpointError: one can't.
    """
    if isinstance(target, dict | list | tuple):
        if nested.are_alike(target, saved):
            for key, item, part in nested.pairs(target, saved):
                check_kinds(session, item, part, f"{place}[{key!r}]")
        elif _holds_state(target) and not nested.are_sequences(target, saved):
            expected = f"a {type(target).__name__} of tensors or states"
            raise same_class.wrong_kind(place, saved, expected)
    elif hasattr(target, "data_ptr"):
        if not hasattr(saved, "shape"):
            raise same_class.wrong_kind(place, saved, "a tensor")
    elif hasattr(target, "load_state_dict"):
        # Modules and optimizers aren't asked what their state is: it takes long.
        has_dict = hasattr(target, "_modules") or is_optimizer(session, target)
        if not isinstance(saved, dict) and (has_dict or isinstance(target.state_dict(), dict)):
            expected = f"a dict, the state of {type(target).__name__},"
            raise same_class.wrong_kind(place, saved, expected)
        if is_optimizer(session, target):
            same_class.check_optimizer(target, saved, place)
        elif is_scheduler(target):
            same_class.check_scheduler(target, saved)
        elif hasattr(target, "_modules"):
            for name, own in module_tree.tensors(target).items():
                value = saved.get(name, own)
                # torch would copy fractions into integers, and cut them off.
                if _has_fractions(value) and not (_has_fractions(own) or own.is_complex()):
                    expected = f"a tensor of {own.dtype}"
                    raise same_class.wrong_kind(f"{place}[{name!r}]", value, expected)


def _holds_state(value: Any) -> bool:
    if hasattr(value, "data_ptr") or hasattr(value, "load_state_dict"):
        return True
    return any(map(_holds_state, nested.items_of(value)))


def _has_fractions(value: Any) -> bool:
    return hasattr(value, "dtype") and value.dtype.is_floating_point


def _without(key: str, saved: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in saved.items() if name != key}


def is_module(session: Session, value: Any) -> bool:
    """True if the strategy has set up this module."""
    return any(value is handle.module or value is handle.wrapped for handle in session.handles)


def is_optimizer(session: Session, value: Any) -> bool:
    """True if the strategy has set up this optimizer."""
    return any(value is optimizer for optimizer in session.strategy.optimizers)


def is_scheduler(value: Any) -> bool:
    """True for a learning-rate scheduler of torch's kind."""
    return any(f"{kind.__module__}.{kind.__name__}" == _SCHEDULER for kind in type(value).__mro__)
