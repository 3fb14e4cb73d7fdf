"""Objects that stand for their state in what is saved, such as a module: taken apart, and restored in place.

Nothing here needs to know torch's classes: a strategy knows its own modules and optimizers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import module_tree

if TYPE_CHECKING:
    from core.contract.strategy import Strategy


def to_plain(strategy: Strategy, value: Any) -> Any:
    """All ranks. Replace modules, optimizers and whatever has a `state_dict()` by their states, nested ones too."""
    if is_module(strategy, value):
        return strategy.get_module_state_dict(value)
    if is_optimizer(strategy, value):
        return strategy.get_optimizer_state_dict(value)
    if callable(method := getattr(value, "state_dict", None)):
        state = method()
        return module_tree.to_canonical(state) if hasattr(value, "_modules") else state
    if isinstance(value, dict):
        return {key: to_plain(strategy, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(to_plain(strategy, item) for item in value)
    return value


def restore(strategy: Strategy, target: Any, saved: Any, strict: bool) -> bool:
    """All ranks. Put a saved state back into `target`. Returns whether that could be done in place."""
    if is_module(strategy, target):
        strategy.load_module_state_dict(target, saved, strict=strict)
    elif is_optimizer(strategy, target):
        strategy.load_optimizer_state_dict(target, saved)
    elif callable(method := getattr(target, "load_state_dict", None)):
        method(saved)
    elif isinstance(target, dict) and isinstance(saved, dict):
        in_place = {key for key, item in saved.items() if restore(strategy, target.get(key), item, strict)}
        target.update({key: item for key, item in saved.items() if key not in in_place})
    elif isinstance(target, list | tuple) and isinstance(saved, list | tuple) and len(target) == len(saved):
        restored = [restore(strategy, item, part, strict) for item, part in zip(target, saved, strict=True)]
        return all(restored)
    else:
        return False
    return True


def is_module(strategy: Strategy, value: Any) -> bool:
    """Whether the strategy has set up this module."""
    return any(value is handle.module or value is handle.wrapped for handle in strategy.handles)


def is_optimizer(strategy: Strategy, value: Any) -> bool:
    """Whether the strategy has set up this optimizer."""
    return any(value is optimizer for optimizer in strategy.optimizers)
