"""The state of modules and optimizers as a whole: written, read, restored."""

from __future__ import annotations

import os
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from core.contract.capability import Capability
from core.contract.errors import CheckpointError
from core.session import (
    half_loaded,
    load_targets,
    nested,
    optimizer_state,
    rank_state,
    replicas,
    state_objects,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core.contract.checkpoint_io import PathLike
    from core.session.session import Session


def save_checkpoint(
    session: Session,
    path: PathLike,
    state: Mapping[str, object],
    *,
    kept: dict[str, object] | None = None,
) -> None:
    """All ranks. Write a state in which modules and optimizers stand for their own.

    Args:
        session: of the strategy.
        path: a local path or a URL.
        state: values are modules and optimizers that were set up there, objects with
            `state_dict()`, lists and dicts of those, or plain values.
        kept: what the strategy had kept for this rank when training ended; None asks it now.

    Raises:
        CheckpointError: it can't be written; what was at `path` is untouched. Or a load has failed
            that had overwritten a part of `state`.
    """
    strategy = session.strategy
    collectives = session.collectives
    checkpoint_io = strategy.checkpoint_io
    # On ranks that write nothing, too: to take a sharded module apart is a collective.
    half_loaded.refuse_half_loaded(session, "saved", dict(state))
    plain = state_objects.to_states(session, dict(state))
    plain |= rank_state.collect(session, dict(state), kept)
    sharded = checkpoint_io.layout == "sharded"
    # Ranks share the writing of what all have; of copies along axes of the mesh one rank writes
    # one.
    are_alike = Capability.REPLICATED_PARAMETERS in strategy.capabilities
    if sharded and collectives.size > 1 and are_alike:
        # in an order that ranks share
        parameters = chain.from_iterable(handle.module.parameters() for handle in session.handles)
        kept_too = optimizer_state.stepped_tensors(strategy.optimizers)
        plain = replicas.share_out(
            plain, chain(parameters, kept_too), rank=collectives.rank, size=collectives.size
        )
    if sharded and strategy.device_mesh is not None:
        plain = replicas.drop_copies(plain, strategy.device_mesh)
    # What averages weights now and then declares none of these.
    trains_alone = collectives.size == 1 and Capability.ELASTIC not in strategy.capabilities
    if trains_alone or are_alike or Capability.SHARDED_STATE in strategy.capabilities:
        checkpoint_io.stepped_tensors = partial(
            optimizer_state.stepped_tensors, strategy.optimizers
        )
    if not (sharded or checkpoint_io.saves_from_all_ranks or strategy.is_global_zero):
        plain = None
    checkpoint_io.save_checkpoint(plain, path, collectives=collectives)


def load_checkpoint(
    session: Session,
    path: PathLike,
    state: Mapping[str, object] | None = None,
    *,
    strict: bool = True,
    renamed: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """All ranks. Read a checkpoint and restore in place everything that `state` names.

    Args:
        session: of the strategy.
        path: a local path or a URL.
        state: as given to `save_checkpoint`; None restores nothing.
        strict: every name in `state`, every key of a module and every parameter of an optimizer
            must be there.
        renamed: names of tensors and modules by those that they were saved with.

    Returns:
        What was saved and isn't in `state` as an object to restore.

    Raises:
        CheckpointNotFoundError: nothing is at `path`.
        CheckpointCorruptedError: it is damaged or foreign.
        CheckpointError: it doesn't fit what is to be restored.
    """
    saved = read_checkpoint(session, path, state)
    rest = restore_state(session, saved, state or {}, strict=strict, renamed=renamed)
    rest.pop(rank_state.KEY, None)
    return rest


def read_checkpoint(
    session: Session,
    path: PathLike,
    state: Mapping[str, object] | None = None,
    *,
    check: Callable[[dict[str, object]], None] | None = None,
) -> dict[str, Any]:
    """All ranks. Read a checkpoint, the tensors of what `state` names into their places, if they
    fit there.

    With a CheckpointIO of layout `sharded`, each rank reads the parts that it needs, and no tensor
    is held twice.

    Args:
        session: of the strategy.
        path: a local path or a URL.
        state: as given to `save_checkpoint`.
        check: is called before anything is restored, with what was saved, or with its description:
            a `TensorDescription` in the place of each tensor. It raises what is to be raised
            instead.

    Returns:
        All that was saved, for `restore_state`.

    Raises:
        CheckpointNotFoundError: nothing is at `path`.
        CheckpointCorruptedError: it is damaged or foreign.
        CheckpointError: another class of optimizer or scheduler has saved. Nothing was restored
            then. If `overwritten` is true in an error, what `state` names is overwritten in part:
            it is refused until it is loaded again.
    """
    checkpoint_io = session.strategy.checkpoint_io
    collectives = session.collectives
    wanted = dict(state or {})
    targets = described = None

    def look(at: dict[str, object]) -> None:
        if check is not None:
            check(at)
        state_objects.check_kinds(session, wanted, at)

    # To read into targets is to restore already: what can't be restored is refused from the
    # description, before.
    if wanted and checkpoint_io.layout == "sharded":
        described = checkpoint_io.describe_checkpoint(path, collectives=collectives)
        if described is not None:
            look(described)
        own = _targets_of(session, described, wanted)
        targets = own and own | rank_state.targets(session, described, wanted)
    try:
        saved = checkpoint_io.load_checkpoint(path, collectives=collectives, state=targets)
    except BaseException as error:  # also Ctrl-C, between two tensors
        if targets and (not isinstance(error, CheckpointError) or error.overwritten):
            half_loaded.mark(session, wanted, os.fspath(path))
        raise
    if described is None:
        look(saved)
    return saved


def _targets_of(session: Session, described: Any, value: Any) -> Any:
    """All ranks. Tensors to fill for what `value` stands for; None where the saved value is to be
    read whole.

    Args:
        session: knows its modules and optimizers.
        described: the part of the checkpoint that belongs to `value`, with descriptions in the
            place of tensors.
        value: as in the state that is given to `save_checkpoint`.
    """
    if state_objects.is_module(session, value):
        return load_targets.module_targets(described, session.strategy.get_module_state_dict(value))
    if state_objects.is_optimizer(session, value):
        if isinstance(described, dict):
            return session.strategy.optimizer_targets(value, described)
        return None
    if not nested.are_alike(value, described):
        return None
    targets = {
        key: _targets_of(session, part, item) for key, item, part in nested.pairs(value, described)
    }
    if isinstance(value, dict):
        return targets
    return list(targets.values())


def restore_state(
    session: Session,
    saved: dict[str, object],
    state: Mapping[str, object],
    *,
    strict: bool = True,
    renamed: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """All ranks. Restore in place from a state that was read already; returns what is left over."""
    missing = [key for key in state if key not in saved]
    if strict and missing:
        raise CheckpointError(
            f"The checkpoint has no {missing[0]!r}; it has {sorted(saved)}. "
            "Leave it out of the state, or pass strict=False."
        )
    if renamed or not strict:
        from core.session.changed_names import adapted  # few need it

        saved = adapted(session, dict(state), saved, renamed or {}, strict=strict)
    rest = {}
    for key, value in saved.items():
        place = f"state[{key!r}]"
        if key not in state or not state_objects.restore(session, state[key], value, strict, place):
            rest[key] = value
    rank_state.restore(session, rest, dict(state))
    if strict:
        half_loaded.unmark(session, dict(state))
    return rest
