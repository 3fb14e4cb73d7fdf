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
    if (kind := type(value)) in nested.PLAIN:
        return value
    if kind is UserData:
        return dict(value)
    # What was set up here comes before the general case: it has a `state_dict`, too.
    if is_module(session, value):
        return session.strategy.get_module_state_dict(value)
    if is_optimizer(session, value):
        return same_class.with_class(session.strategy.get_optimizer_state_dict(value), value)
    if callable(method := getattr(value, "state_dict", None)):
        state = method()
        if is_scheduler(value):
            return {**state, same_class.SCHEDULER_KEY: same_class.describe_scheduler(value)}
        # A module that wasn't set up here, such as a metric, may be compiled all the same.
        return module_tree.to_canonical(state) if hasattr(value, "_modules") else state
    if isinstance(value, dict) and _comes_back(kind, value.values()):
        states = {key: to_states(session, item) for key, item in value.items()}
        return kind(states) if kind in _OWN_KINDS else states
    if isinstance(value, list | tuple) and _comes_back(kind, value):
        items = nested.map_items(lambda item: to_states(session, item), value)
        return (tuple if isinstance(value, tuple) else list)(items)
    return value


def _comes_back(kind: type, items: Collection[object]) -> bool:
    """True if a container of this class can be loaded as it was.

    One of the user's own class, such as a named tuple, can't, unless it holds only objects, which
    are restored in place: a CheckpointIO refuses it.
    """
    return kind in _OWN_KINDS or (
        bool(items) and all(hasattr(item, "state_dict") for item in items)
    )


def restore(session: Session, target: Any, saved: Any, strict: bool, place: str) -> bool:
    """All ranks. Restore what was saved at `place` in `target`. Returns whether that could be done
    in place.
    """
    if is_module(session, target):
        session.strategy.load_module_state_dict(target, saved, strict=strict)
    elif is_optimizer(session, target):
        session.strategy.load_optimizer_state_dict(
            target, _without(same_class.OPTIMIZER_KEY, saved)
        )
    elif callable(getattr(target, "load_state_dict", None)):
        _restore_object(target, saved, strict, place)
    elif isinstance(target, dict) and isinstance(saved, dict):
        at = f"{place}[{{!r}}]".format
        in_place = {
            key
            for key, item in saved.items()
            if restore(session, target.get(key), item, strict, at(key))
        }
        target.update({key: item for key, item in saved.items() if key not in in_place})
    elif (
        isinstance(target, list | tuple)
        and isinstance(saved, list | tuple)
        and len(target) == len(saved)
    ):
        pairs = enumerate(zip(target, saved, strict=True))
        restored = [
            restore(session, item, part, strict, f"{place}[{index}]")
            for index, (item, part) in pairs
        ]
        # A sequence counts as restored if each item was: otherwise the caller takes what was saved
        # in its place.
        return all(restored)
    else:
        return False
    return True


def _restore_object(target: Any, saved: Any, strict: bool, place: str) -> None:
    try:
        if hasattr(target, "_modules"):
            mismatch.load(target, saved, strict=strict)
        else:
            target.load_state_dict(
                _without(same_class.SCHEDULER_KEY, saved) if is_scheduler(target) else saved
            )
    except (CoreError, OSError, MemoryError):
        raise
    except Exception as error:  # whatever the user's own method raises
        reason = f"its load_state_dict raised {type(error).__name__}: {error}"
        raise same_class.wrong_kind(
            place, saved, f"a state of {type(target).__name__} ({reason})"
        ) from error


def check_kinds(session: Session, target: Any, saved: Any, place: str = "state") -> None:
    """Check, before anything is restored, that what was saved is of the kind of what it is restored
    into.

    Each module, optimizer and scheduler needs a dict, a tensor a tensor, and a container of any of
    these one like it; optimizers and schedulers can go on from what their own class has saved.

    Raises:
        CheckpointError: one can't.
    """
    if expected := _expected(session, target, saved):
        raise same_class.wrong_kind(place, saved, expected)
    if is_optimizer(session, target):
        same_class.check_optimizer(target, saved, place)
    elif is_scheduler(target):
        same_class.check_scheduler(target, saved)
    elif hasattr(target, "_modules"):
        for name, own in module_tree.tensors(target).items():
            value, kind = saved.get(name, own), own.dtype
            if not hasattr(value, "shape"):
                raise same_class.wrong_kind(f"{place}[{name!r}]", value, "a tensor")
            # torch would copy fractions into integers, and cut them off.
            if getattr(value.dtype, "is_floating_point", False) and not (
                kind.is_floating_point or kind.is_complex
            ):
                raise same_class.wrong_kind(f"{place}[{name!r}]", value, f"a tensor of {kind}")
    elif isinstance(target, dict) and isinstance(saved, dict):
        for key in target.keys() & saved.keys():
            check_kinds(session, target[key], saved[key], f"{place}[{key!r}]")
    elif isinstance(target, list | tuple) and isinstance(saved, list | tuple):
        # Their number is looked at where they are restored.
        for index, (item, part) in enumerate(zip(target, saved, strict=False)):
            check_kinds(session, item, part, f"{place}[{index}]")


def _expected(session: Session, target: Any, saved: Any) -> str | None:
    """The kind that should have been saved for `target`, in words; None if it was. Plain values may
    be any.
    """
    if hasattr(target, "data_ptr"):
        return None if hasattr(saved, "shape") else "a tensor"
    if isinstance(target, dict | list | tuple):
        is_alike = isinstance(saved, dict if isinstance(target, dict) else list | tuple)
        return (
            None
            if is_alike or not _holds_state(target)
            else f"a {type(target).__name__} of tensors or states"
        )
    if isinstance(saved, dict) or not hasattr(target, "load_state_dict"):
        return None
    has_dict = (
        hasattr(target, "_modules")
        or is_optimizer(session, target)
        or isinstance(target.state_dict(), dict)
    )
    return f"a dict, the state of {type(target).__name__}," if has_dict else None


def _holds_state(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return any(map(_holds_state, value.values() if isinstance(value, dict) else value))
    return hasattr(value, "data_ptr") or hasattr(value, "load_state_dict")


def _without(key: str, saved: Any) -> Any:
    return (
        {name: value for name, value in saved.items() if name != key}
        if isinstance(saved, dict)
        else saved
    )


def is_module(session: Session, value: Any) -> bool:
    """True if the strategy has set up this module."""
    return any(value is handle.module or value is handle.wrapped for handle in session.handles)


def is_optimizer(session: Session, value: Any) -> bool:
    """True if the strategy has set up this optimizer."""
    return any(value is optimizer for optimizer in session.strategy.optimizers)


def is_scheduler(value: Any) -> bool:
    """True for a learning-rate scheduler of torch's kind."""
    return any(f"{kind.__module__}.{kind.__name__}" == _SCHEDULER for kind in type(value).__mro__)
