"""The state that each rank of a strategy keeps for itself, in a checkpoint of all ranks."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from core.contract.protocols import KeepsRankState
from core.contract.sharded_leaf import TensorDescription
from core.session import nested, replicas, state_objects

if TYPE_CHECKING:
    from core.session.session import Session

KEY = "strategy.rank_state"
"""Its place in a checkpoint: a list, one item a rank."""


def collect(session: Session, state: Any, kept: dict[str, Any] | None = None) -> dict[str, Any]:
    """All ranks. The states of all, under `KEY`, if `state` has an optimizer and the strategy keeps
    any.

    With layout `sharded` each rank writes its own; otherwise rank 0 gets all.

    Args:
        session: of the strategy.
        state: that is saved.
        kept: this rank's state at an earlier moment; None asks the strategy.
    """
    strategy = session.strategy
    collectives = session.collectives
    if not isinstance(strategy, KeepsRankState) or not _trains(session, state):
        return {}
    if kept is None:
        kept = strategy.rank_state_dict()
    if kept is None:
        return {}
    if strategy.checkpoint_io.layout != "sharded":
        moved = nested.replace(_on_cpu, kept)
        return {KEY: collectives.gather_objects(moved)}
    leaves = collectives.gather_objects(nested.replace(_elsewhere, kept))
    leaves = collectives.broadcast_object(leaves)
    leaves[collectives.rank] = nested.replace(_here, kept)
    return {KEY: leaves}


def targets(session: Session, described: object, state: object) -> dict[str, Any]:
    """All ranks. Where a sharded checkpoint's states are read to: this rank's into memory, the
    others' nowhere.
    """
    if not isinstance(described, dict) or KEY not in described:
        return {}
    leaves = [nested.replace(_elsewhere, each) for each in described[KEY]]
    is_kept = isinstance(session.strategy, KeepsRankState) and _trains(session, state)
    if is_kept and len(leaves) == session.collectives.size:
        leaves[session.collectives.rank] = None  # what has no place is read whole
    return {KEY: leaves}


def restore(session: Session, saved: dict[str, Any], state: Any) -> None:
    """All ranks. Give the strategy what this rank has saved, once an optimizer was restored."""
    states = saved.get(KEY)
    strategy = session.strategy
    if states is None or not _trains(session, state):
        return
    if not isinstance(strategy, KeepsRankState) or strategy.rank_state_dict() is None:
        return
    if len(states) == session.collectives.size:
        strategy.load_rank_state_dict(states[session.collectives.rank])
    elif strategy.is_global_zero:
        warnings.warn(
            f"{len(states)} ranks have saved what each keeps for itself, such as the rest of a "
            f"compression, and here are {session.collectives.size}: it begins anew. In "
            f"{len(states)} processes the run goes on exactly.",
            stacklevel=2,
        )


def _trains(session: Session, value: Any) -> bool:
    """True if a state contains an optimizer that was set up."""
    if state_objects.is_optimizer(session, value):
        return True
    return any(_trains(session, item) for item in nested.items_of(value))


def _on_cpu(value: Any) -> object:
    if not hasattr(value, "data_ptr"):
        return value
    return value.detach().cpu()


def _here(value: Any) -> object:
    if not hasattr(value, "data_ptr"):
        return value
    return replicas.here(value.detach())


def _elsewhere(value: Any) -> object:
    if not hasattr(value, "data_ptr") and not isinstance(value, TensorDescription):
        return value
    return replicas.elsewhere(value)
