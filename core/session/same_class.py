"""The check that optimizers and schedulers can go on from saved states: by class, and by the names
in the state.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch.optim import Optimizer

OPTIMIZER_KEY, SCHEDULER_KEY = "class", "made_by"
"""Keys in a saved state for what is known of the class that saved it."""
_STANDS_FOR = "stands_for"
"""Attribute of an optimizer that a strategy has made in the place of the user's: the user's
class.
"""
_NESTED = "_schedulers"
"""The key, and attribute, under which torch's SequentialLR and ChainedScheduler keep schedulers."""
_FILLED_IN = {
    "amsgrad",
    "maximize",
    "foreach",
    "capturable",
    "differentiable",
    "fused",
    "decoupled_weight_decay",
}
"""Options that torch's optimizers fill in where an older release has saved."""
_MAY_BE_NUMBERS = {"step", "eta", "mu", "mu_product"}
"""Pieces of an entry that torch's optimizers keep as numbers in older releases, and SparseAdam in
all.
"""
_OF_ANY_SCHEDULER = {"base_lrs", "last_epoch", "verbose", SCHEDULER_KEY}


def with_class(state: dict[str, Any], optimizer: Optimizer) -> dict[str, object]:
    """The saved state with its class added. A rank that has nothing of the state adds nothing."""
    return {**state, OPTIMIZER_KEY: _name_of(_class_of(optimizer))} if state else state


def describe_scheduler(scheduler: Any) -> dict[str, Any]:
    """The class of a scheduler and of those that it is made of, in plain types."""
    parts = [describe_scheduler(part) for part in getattr(scheduler, _NESTED, ())]
    return {"class": _name_of(type(scheduler)), "parts": parts}


def check_optimizer(optimizer: Optimizer, saved: Any, place: str = "state") -> None:
    """Refuse the state of an optimizer that keeps other things, and warn of one that may.

    Args:
        optimizer: that is to go on.
        saved: its saved state, or a description of it. One without a class is recognized by the
            options in its groups.
        place: of the state in the checkpoint.

    Raises:
        CheckpointError: another class has saved it, or one without `amsgrad`; or it has something
            else than a tensor.
    """
    groups = saved.get("param_groups")
    are_dicts = isinstance(groups, list) and all(
        isinstance(each, dict) and "params" in each for each in groups
    )
    if not (are_dicts and groups):
        raise wrong_kind(f"{place}['param_groups']", groups, "a list of dicts with 'params'")
    own, mine = _class_of(optimizer), optimizer.param_groups
    lacking = (mine[0].keys() & optimizer.defaults.keys()) - groups[0].keys() - _FILLED_IN
    # Schedulers put `initial_lr` into the groups.
    strange = (
        groups[0].keys() - mine[0].keys() - _FILLED_IN - {"params", "param_names", "initial_lr"}
    )
    _check("optimizer", own, saved.get(OPTIMIZER_KEY), lacking, strange)
    if not _is_torchs(type(optimizer)):
        return
    _check_entries(saved.get("state", {}), f"{place}['state']")
    if _lacks_amsgrad(mine, groups, saved.get("state")):
        raise _refusal(
            "optimizer", own, f"{_name_of(own)} without amsgrad, so that it has no 'max_exp_avg_sq'"
        )


def _check_entries(state: Any, place: str) -> None:
    if not isinstance(state, dict):
        raise wrong_kind(place, state, "a dict")
    for name, entry in state.items():
        if not isinstance(entry, dict):
            raise wrong_kind(f"{place}[{name!r}]", entry, "a dict of tensors")
        # torch's optimizers count the steps of each parameter for which they keep more than a
        # momentum.
        if not {"step", "func_evals"} & entry.keys() and entry.keys() - {"momentum_buffer"}:
            raise wrong_kind(f"{place}[{name!r}]", sorted(entry), "'step', too,")
        if "func_evals" in entry:  # of LBFGS
            continue
        for key, value in entry.items():
            is_number = isinstance(value, int | float) and key in _MAY_BE_NUMBERS
            if value is not None and not is_number and not hasattr(value, "shape"):
                raise wrong_kind(f"{place}[{name!r}][{key!r}]", value, "a tensor")


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


def _lacks_amsgrad(
    mine: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]], state: Any
) -> bool:
    asked = [
        saved
        for own, saved in zip(mine, groups, strict=False)
        if own.get("amsgrad") or saved.get("amsgrad")
    ]
    entries = [state[key] for group in asked for key in group["params"] if key in state]
    return any("exp_avg_sq" in entry and "max_exp_avg_sq" not in entry for entry in entries)


def check_scheduler(scheduler: Any, state: Any, described: object = None) -> None:
    """Refuse the state of a scheduler that keeps other things, and warn of one that may.

    Args:
        scheduler: that is to go on.
        state: its saved state, or a description of it. Without the class of its scheduler, it is
            known by its keys.
        described: what `describe_scheduler` gave of it, if the state doesn't have it.

    Raises:
        CheckpointError: a scheduler of another class has saved; both are named.
    """
    if not isinstance(state, dict):
        return
    described = described or state.get(SCHEDULER_KEY)
    known = described if isinstance(described, dict) else {}
    own, there = _names_in(scheduler.state_dict()), _names_in(state)
    telling = {_NESTED, "lr_lambdas"} & (own ^ there)
    _check(
        "scheduler",
        type(scheduler),
        known.get("class"),
        own - there or telling,
        there - own or telling,
    )
    parts, states = getattr(scheduler, _NESTED, ()), state.get(_NESTED, ())
    if len(parts) != len(states):
        name = known.get("class") or "one"
        saved = f"{name} that is made of {len(states)} schedulers, not of {len(parts)}"
        raise _refusal("scheduler", type(scheduler), saved)
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
    if schedulers and not states:
        names = ", ".join(_name_of(type(scheduler)) for scheduler in schedulers)
        what = f"no state of a learning-rate scheduler, and {names} begins anew, at its first step"
        warnings.warn(f"The checkpoint has {what}.", stacklevel=2)
    if states and not schedulers:
        what = (
            "the state of a learning-rate scheduler, and configure_optimizers made none: rates "
            "stay as saved"
        )
        warnings.warn(f"The checkpoint has {what}.", stacklevel=2)
    for each in zip(schedulers, states, described or [None] * len(states), strict=False):
        check_scheduler(*each)


def _check(
    what: str, own: type, name: str | None, lacking: Collection[str], strange: Collection[str]
) -> None:
    if name and _is_same(own, name):
        return
    # Either of the two alone may be another release of the same class.
    if (lacking and strange) or (name and _are_strangers(own, name)):
        raise _refusal(what, own, name or f"one that keeps {sorted(strange)}")
    if name or lacking or strange:
        saved = name or f"one that differs in {sorted({*lacking, *strange})}"
        warnings.warn(
            f"The {what} state in the checkpoint is of {saved}, and {_name_of(own)} goes on from "
            f"it, with the options that were saved. Make the {what} that it was saved with if you "
            "want another thing.",
            stacklevel=2,
        )


def _refusal(what: str, own: type, saved: str) -> CheckpointError:
    return CheckpointError(
        f"The {what} state in the checkpoint is of {saved}, and {_name_of(own)} is to go on from "
        f"it, which keeps other things. Make the {what} that the checkpoint was saved with, or "
        "start a new run from its weights: load the module alone."
    )


def _names_in(state: Any) -> set[str]:
    """Names that distinguish classes of schedulers; private ones come and go with releases of
    torch.
    """
    names = {
        key for key in state if isinstance(key, str) and (not key.startswith("_") or key == _NESTED)
    }
    return names - _OF_ANY_SCHEDULER


def _class_of(optimizer: Optimizer) -> type:
    return getattr(optimizer, _STANDS_FOR, type(optimizer))


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_torchs(kind: type) -> bool:
    return kind.__module__.startswith("torch.")


def _is_same(own: type, saved: str) -> bool:
    """True of the class itself; one of the user's may have moved to another module, as from a
    script to a package.
    """
    moved = (
        not saved.startswith("torch.")
        and not _is_torchs(own)
        and saved.rpartition(".")[2] == own.__name__
    )
    return moved or saved == _name_of(own)


def _are_strangers(own: type, saved: str) -> bool:
    """True if both are classes of torch, and neither is a subclass of the other. AdamW is one of
    Adam.
    """
    if not (saved.startswith("torch.") and _is_torchs(own)):
        return False
    module, _, name = saved.rpartition(".")
    other = getattr(sys.modules.get(module), name, None)
    return isinstance(other, type) and not issubclass(own, other) and not issubclass(other, own)
