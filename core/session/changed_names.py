"""States whose parameters have other names by now, were added or removed: made to fit before they
are restored.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from core.contract.errors import CheckpointError
from core.session import mismatch, module_tree, nested, optimizer_state, state_objects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from core.session.session import Session


def adapted(
    session: Session, target: Any, saved: Any, renamed: Mapping[str, str], *, strict: bool
) -> Any:
    """All ranks. The saved state with today's names, and unless `strict` without optimizers'
    parameters that are gone.

    Args:
        session: knows its modules and optimizers.
        target: what is restored: modules, optimizers, and dicts and lists of them.
        saved: its state.
        renamed: names by saved names, each of a tensor or up to a dot.
        strict: what doesn't fit is left for whoever restores it, and refused there.

    Raises:
        CheckpointError: two tensors would have one name.
    """
    if isinstance(saved, dict) and state_objects.is_module(session, target):
        named = {_renamed(name, renamed): value for name, value in saved.items()}
        for name, value in saved.items():
            if named[_renamed(name, renamed)] is not value:
                raise CheckpointError(
                    f"renamed={dict(renamed)} gives {name!r} of the checkpoint the name of another "
                    f"of its tensors, {_renamed(name, renamed)!r}. Name that one too."
                )
        return named
    if isinstance(saved, dict) and state_objects.is_optimizer(session, target):
        named = optimizer_state.with_names(saved, lambda name: _renamed(name, renamed))
        if strict:
            return named
        return _without_strangers(session, target, named)
    if not nested.are_alike(target, saved):
        return saved
    items = {
        key: adapted(session, item, part, renamed, strict=strict)
        for key, item, part in nested.pairs(target, saved)
    }
    if isinstance(saved, dict):
        return {**saved, **items}
    return list(items.values())


def describe_changes(
    session: Session, module: nn.Module, saved: Mapping[str, object], renamed: Mapping[str, str]
) -> str:
    """The tensors of a module that was set up which its saved state lacks, and the reverse, in
    words.
    """
    own = dict.fromkeys(module_tree.to_canonical(session.handle_of(module).module.state_dict()))
    changes = mismatch.describe_mismatch(
        own, dict.fromkeys(_renamed(name, renamed) for name in saved)
    )
    return changes or f"The checkpoint has the names of {type(module).__name__}."


def _renamed(name: Any, renamed: Mapping[str, str]) -> Any:
    """The longest beginning that is renamed counts."""
    parts = str(name).split(".")
    for number in range(len(parts), 0, -1):
        beginning = ".".join(parts[:number])
        if beginning in renamed:
            return ".".join([renamed[beginning], *parts[number:]])
    return name


def _without_strangers(session: Session, optimizer: Any, saved: dict[str, Any]) -> dict[str, Any]:
    """The state of the parameters that the optimizer has; others in its groups get a state with
    their first step.
    """
    names = session.strategy.parameter_names(optimizer)
    there = [name for group in saved["param_groups"] for name in group["params"]]
    if {*there} == {*names} or there == [*range(len(names))]:
        return saved
    own = optimizer.param_groups
    options = saved["param_groups"]
    if len(options) != len(own):
        options = own
    remaining, groups = iter(names), []
    for group, option in zip(own, options, strict=True):
        groups.append({**option, "params": [next(remaining) for _ in group["params"]]})
    if session.strategy.is_global_zero:
        new = [name for name in names if name not in there]
        gone = [name for name in there if name not in names]
        warnings.warn(
            f"{type(optimizer).__name__} begins anew for {_shown(new)}; it leaves out "
            f"{_shown(gone)}.",
            stacklevel=2,
        )
    kept = {name: saved["state"][name] for name in names if name in saved["state"]}
    return {**saved, "state": kept, "param_groups": groups}


def _shown(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:3]))
    if len(names) > 3:
        shown += ", ..."
    return shown or "nothing"
