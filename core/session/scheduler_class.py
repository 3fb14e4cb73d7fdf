"""The check that the schedulers at hand can go on from saved scheduler states."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KEY = "made_by"
"""Key in a saved state for the description of its scheduler."""

_NESTED = "_schedulers"
"""The key, and attribute, under which torch's SequentialLR and ChainedScheduler keep schedulers."""

_COMMON = {"base_lrs", "last_epoch", "verbose"}
"""Keys that schedulers of any class keep, in some release of torch."""


def describe_scheduler(scheduler: Any) -> dict[str, Any]:
    """The class of a scheduler and of those that it is made of, in plain types."""
    parts = [describe_scheduler(part) for part in _parts_of(scheduler)]
    return {"class": _name_of(type(scheduler)), "parts": parts}


def with_description(state: dict[str, Any], scheduler: Any) -> dict[str, Any]:
    """The saved state with the description of its scheduler added."""
    return {**state, KEY: describe_scheduler(scheduler)}


def check(scheduler: Any, saved: Any) -> None:
    """Refuse the state of a scheduler that keeps other things, and warn of one that may.

    Args:
        scheduler: that is to go on.
        saved: its saved state, or a description of it. Without the class of its scheduler, it is known by its keys.

    Raises:
        CheckpointError: a scheduler of another class has saved; both are named.
    """
    _check(scheduler, saved, saved.get(KEY) if isinstance(saved, dict) else None)


def check_schedulers(schedulers: Sequence[Any], states: Sequence[Any], described: Sequence[Any]) -> None:
    """Refuse the state of a scheduler that keeps other things, and warn of one that may.

    Args:
        schedulers: that are to go on.
        states: that were saved, or descriptions of them.
        described: what `describe_scheduler` gave of those that saved them; empty in a checkpoint that doesn't have it,
            whose states are recognized by their keys.

    Raises:
        CheckpointError: schedulers of other classes have saved, or another number of them; both are named.
    """
    if not schedulers or not states:
        if schedulers or states:
            _warn_of_none(schedulers)
        return
    if len(schedulers) != len(states):
        raise CheckpointError(
            f"The checkpoint has the states of {len(states)} learning-rate schedulers, and configure_optimizers made "
            f"{len(schedulers)}. Make those that it was saved with, or start a new run from its weights."
        )
    known = described if len(described) == len(states) else [None] * len(states)
    for each in zip(schedulers, states, known, strict=True):
        _check(*each)


def _check(scheduler: Any, state: Any, saved: Any) -> None:
    name = saved.get("class") if isinstance(saved, dict) else None
    if isinstance(state, dict):
        _check_class(scheduler, state, name)
    parts = _parts_of(scheduler)
    states = state.get(_NESTED, []) if isinstance(state, dict) else []
    if len(parts) != len(states):
        raise _refusal(scheduler, f"{name or 'one'} that is made of {len(states)} schedulers, not of {len(parts)}")
    inner = saved.get("parts", []) if isinstance(saved, dict) else []
    known = inner if len(inner) == len(states) else [None] * len(states)
    for each in zip(parts, states, known, strict=True):
        _check(*each)


def _check_class(scheduler: Any, state: Mapping[str, Any], name: str | None) -> None:
    own = type(scheduler)
    # A class of the user may have moved to another module, as from a script to a package.
    if name is not None and (name == _name_of(own) or _moved(own, name)):
        return
    lacking, strange = _differing_keys(scheduler, state)
    if (lacking and strange) or _NESTED in lacking + strange or "lr_lambdas" in lacking + strange:
        raise _refusal(scheduler, name or f"one that keeps {strange or 'no ' + lacking[0]}")
    if name is not None and _are_strangers(own, name):
        raise _refusal(scheduler, name)
    if name is not None or lacking or strange:
        warnings.warn(
            f"The scheduler state in the checkpoint is of {name or f'one that differs in {lacking + strange}'}, and "
            f"{_name_of(own)} goes on from it, with the options that were saved. Make the scheduler that it was saved "
            "with if you want another thing.",
            stacklevel=2,
        )


def _refusal(scheduler: Any, saved: str) -> CheckpointError:
    return CheckpointError(
        f"The scheduler state in the checkpoint is of {saved}, and {_name_of(type(scheduler))} is to go on from it, "
        "which keeps other things. Make the learning-rate scheduler that the checkpoint was saved with, or start a new "
        "run from its weights: load the module alone."
    )


def _warn_of_none(schedulers: Sequence[Any]) -> None:
    names = ", ".join(_name_of(type(scheduler)) for scheduler in schedulers)
    what = (
        f"has no state of a learning-rate scheduler, and {names} begins anew, at its first step"
        if schedulers
        else "has the state of a learning-rate scheduler, and configure_optimizers made none: rates stay as saved"
    )
    warnings.warn(f"The checkpoint {what}.", stacklevel=2)


def _differing_keys(scheduler: Any, saved: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Names that the scheduler keeps and that weren't saved; and those that were and that it doesn't know."""
    own = {key for key in scheduler.state_dict() if _is_distinctive(key)}
    there = {key for key in saved if _is_distinctive(key) and key != KEY}
    return sorted(own - there), sorted(there - own)


def _is_distinctive(key: Any) -> bool:
    """True of a name that distinguishes classes; private ones come and go with releases of torch."""
    return key == _NESTED or (isinstance(key, str) and not key.startswith("_") and key not in _COMMON)


def _parts_of(scheduler: Any) -> list[Any]:
    return list(getattr(scheduler, _NESTED, ()))


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _moved(own: type, saved: str) -> bool:
    is_torchs = saved.startswith("torch.") or own.__module__.startswith("torch.")
    return not is_torchs and saved.rpartition(".")[2] == own.__name__


def _are_strangers(own: type, saved: str) -> bool:
    """True if both are torch's own, and neither is a kind of the other."""
    if not (saved.startswith("torch.") and own.__module__.startswith("torch.")):
        return False
    # `mro()[-2]`, the class below `object`, is LRScheduler: found without importing torch.
    other = next((kind for kind in _all_kinds(own.mro()[-2]) if _name_of(kind) == saved), None)
    return other is not None and not issubclass(own, other) and not issubclass(other, own)


def _all_kinds(root: Any) -> list[type]:
    return [root, *(kind for child in root.__subclasses__() for kind in _all_kinds(child))]
