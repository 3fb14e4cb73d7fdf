"""States whose parameters have other names by now, were added or removed: made to fit before they
are restored.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from core.contract.errors import CheckpointError
from core.session import mismatch, module_tree, state_objects

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
        if len(named) < len(saved):
            lost = next(name for name in saved if named[_renamed(name, renamed)] is not saved[name])
            raise CheckpointError(
                f"renamed={dict(renamed)} gives {lost!r} of the checkpoint the name of another of "
                f"its tensors, {_renamed(lost, renamed)!r}. Name that one too."
            )
        return named
    if isinstance(saved, dict) and state_objects.is_optimizer(session, target):
        groups = [
            {**group, "params": [_renamed(name, renamed) for name in group["params"]]}
            for group in saved["param_groups"]
        ]
        state = {_renamed(name, renamed): entry for name, entry in saved["state"].items()}
        named = {**saved, "state": state, "param_groups": groups}
        return named if strict else _without_strangers(session, target, named)
    if isinstance(target, dict) and isinstance(saved, dict):
        return {
            key: adapted(session, target[key], item, renamed, strict=strict)
            if key in target
            else item
            for key, item in saved.items()
        }
    if (
        isinstance(target, list | tuple)
        and isinstance(saved, list | tuple)
        and len(target) == len(saved)
    ):
        pairs = zip(target, saved, strict=True)
        return [adapted(session, item, part, renamed, strict=strict) for item, part in pairs]
    return saved


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
        if (known := renamed.get(".".join(parts[:number]))) is not None:
            return ".".join([known, *parts[number:]])
    return name


def _without_strangers(session: Session, optimizer: Any, saved: dict[str, Any]) -> dict[str, Any]:
    """The state of the parameters that the optimizer has; others in its groups get a state with
    their first step.
    """
    names = session.strategy.parameter_names(optimizer)
    there = [name for group in saved["param_groups"] for name in group["params"]]
    if {*there} == {*names} or there == [*range(len(names))]:
        return saved
    new, gone = (
        [name for name in names if name not in there],
        [name for name in there if name not in names],
    )
    groups, begin = [], 0
    for index, group in enumerate(optimizer.param_groups):
        end = begin + len(group["params"])
        options = (
            saved["param_groups"][index]
            if len(saved["param_groups"]) == len(optimizer.param_groups)
            else group
        )
        groups.append({**options, "params": names[begin:end]})
        begin = end
    if session.strategy.is_global_zero:
        warnings.warn(
            f"{type(optimizer).__name__} begins anew for {_shown(new)}; it leaves out "
            f"{_shown(gone)}.",
            stacklevel=2,
        )
    return {
        **saved,
        "state": {name: saved["state"][name] for name in names if name in saved["state"]},
        "param_groups": groups,
    }


def _shown(names: list[str]) -> str:
    more = ", ..." if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more or "nothing"
