"""The check that optimizers and schedulers can go on from saved states: by the name of the class
that stands in the state.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.optim import Optimizer

OPTIMIZER_KEY, SCHEDULER_KEY = "class", "made_by"
"""Keys in a saved state for what is known of the class that saved it."""
_STANDS_FOR = "stands_for"
"""Attribute of an optimizer that a strategy has made in the place of the user's: the user's
class.
"""
_NESTED = "_schedulers"
"""The key, and attribute, under which torch's SequentialLR and ChainedScheduler keep schedulers."""


def with_class(state: dict[str, Any], optimizer: Optimizer) -> dict[str, object]:
    """The saved state with its class added. A rank that has nothing of the state adds nothing."""
    if not state:
        return state
    return {**state, OPTIMIZER_KEY: _name_of(_class_of(optimizer))}


def describe_scheduler(scheduler: Any) -> dict[str, Any]:
    """The class of a scheduler and of those that it is made of, in plain types."""
    parts = [describe_scheduler(part) for part in getattr(scheduler, _NESTED, ())]
    return {"class": _name_of(type(scheduler)), "parts": parts}


def check_optimizer(optimizer: Optimizer, saved: Any, place: str = "state") -> None:
    """Refuse the state of another optimizer of torch, and warn of one that may keep other things.

    Args:
        optimizer: that is to go on.
        saved: its saved state, or a description of it. One of another program names no class.
        place: of the state in the checkpoint.

    Raises:
        CheckpointError: another class has saved it, or it has no groups.
    """
    groups = saved.get("param_groups")
    has_groups = isinstance(groups, list) and groups
    if not has_groups or not all(isinstance(each, dict) and "params" in each for each in groups):
        raise wrong_kind(f"{place}['param_groups']", groups, "a list of dicts with 'params'")
    _compare("optimizer", _class_of(optimizer), saved.get(OPTIMIZER_KEY))


def wrong_kind(place: str, saved: object, expected: str) -> CheckpointError:
    """The error over a place in a checkpoint that holds something of another kind.

    Args:
        place: such as `"state['ema']"`.
        saved: what is there.
        expected: what should be.
    """
    return CheckpointError(
        f"The checkpoint has {type(saved).__name__} {saved!r:.80} at {place}, where {expected} was "
        "expected: something else was saved by this name, or the file was changed. Load another "
        "checkpoint, or leave it out of the state."
    )


def check_scheduler(scheduler: Any, state: Any, described: Any = None) -> None:
    """Refuse the state of another scheduler of torch, and warn of one that may keep other things.

    Args:
        scheduler: that is to go on.
        state: its saved state, or a description of it. One of another program names no class.
        described: what `describe_scheduler` gave of it, if the state doesn't have it.

    Raises:
        CheckpointError: a scheduler of another class has saved; both are named.
    """
    if not isinstance(state, dict):
        return
    known = described or state.get(SCHEDULER_KEY) or {}
    own, name = type(scheduler), known.get("class")
    _compare("scheduler", own, name)
    parts, states = getattr(scheduler, _NESTED, ()), state.get(_NESTED, ())
    if len(parts) != len(states):
        what = f"that is made of {len(states)} schedulers, not of {len(parts)}"
        raise _refusal("scheduler", own, f"{name or 'one'} {what}")
    inner = known.get("parts") or [None] * len(states)
    for each in zip(parts, states, inner, strict=False):
        check_scheduler(*each)


def check_schedulers(
    schedulers: Sequence[Any], states: Sequence[Any], described: Sequence[Any]
) -> None:
    """`check_scheduler` for each of them; see there.

    Args:
        schedulers: that are to go on.
        states: that were saved, or descriptions of them.
        described: what `describe_scheduler` gave of each; empty in a checkpoint that doesn't have
            it.

    Raises:
        CheckpointError: schedulers of other classes have saved, or another number of them.
    """
    if schedulers and states and len(schedulers) != len(states):
        raise CheckpointError(
            f"The checkpoint has the states of {len(states)} learning-rate schedulers, and "
            f"configure_optimizers made {len(schedulers)}. Make those that it was saved with, or "
            "start a new run from its weights."
        )
    what = ""
    if schedulers and not states:
        names = ", ".join(_name_of(type(scheduler)) for scheduler in schedulers)
        what = f"no state of a learning-rate scheduler, and {names} begins anew, at its first step"
    elif states and not schedulers:
        what = (
            "the state of a learning-rate scheduler, and configure_optimizers made none: rates "
            "stay as saved"
        )
    if what:
        warnings.warn(f"The checkpoint has {what}.", stacklevel=2)
    for each in zip(schedulers, states, described or [None] * len(states), strict=False):
        check_scheduler(*each)


def _compare(what: str, own: type, name: str | None) -> None:
    if not name:
        return
    mine, (module, _, last) = _name_of(own), name.rpartition(".")
    of_torch = {each.startswith("torch.") for each in (mine, name)}
    # One of the user's may have moved to another module, as from a script to a package.
    if name == mine or (of_torch == {False} and last == own.__name__):
        return
    other: Any = getattr(sys.modules.get(module), last, None)
    are_known = of_torch == {True} and isinstance(other, type)
    # AdamW is a subclass of Adam.
    if are_known and not issubclass(own, other) and not issubclass(other, own):
        raise _refusal(what, own, name)
    warnings.warn(
        f"The {what} state in the checkpoint is of {name}, and {mine} goes on from it, "
        f"with the options that were saved. Make the {what} that it was saved with if you want "
        "another thing.",
        stacklevel=2,
    )


def _refusal(what: str, own: type, saved: str) -> CheckpointError:
    return CheckpointError(
        f"The {what} state in the checkpoint is of {saved}, and {_name_of(own)} is to go on from "
        f"it, which keeps other things. Make the {what} that the checkpoint was saved with, or "
        "start a new run from its weights: load the module alone."
    )


def _class_of(optimizer: Optimizer) -> type:
    return getattr(optimizer, _STANDS_FOR, type(optimizer))


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
