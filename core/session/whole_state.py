"""The state of modules and optimizers as a whole: written, read, restored. `Session` says what each call promises."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from core.contract.capability import Capability
from core.contract.errors import CheckpointError
from core.session import half_loaded, load_targets, nested, optimizer_state, rank_state, replicas, state_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from core.contract.checkpoint_io import PathLike
    from core.session.session import Session


def save(session: Session, path: PathLike, state: Mapping[str, Any], kept: dict[str, Any] | None) -> None:
    """All ranks. See `Session.save_checkpoint`."""
    strategy, collectives = session.strategy, session.collectives
    checkpoint_io = strategy.checkpoint_io
    # On ranks that write nothing, too: to take a sharded module apart is a collective.
    with nested.refuse_endless():
        half_loaded.refuse(session, dict(state), "saved")
        plain = state_objects.to_states(session, dict(state)) | rank_state.collect(session, dict(state), kept)
    sharded = checkpoint_io.layout == "sharded"
    # Ranks share the writing of what all have; of copies along axes of the mesh one rank writes one.
    if sharded and collectives.size > 1 and Capability.REPLICATED_PARAMETERS in strategy.capabilities:
        plain = replicas.share_out(plain, _parameter_tensors(session), rank=collectives.rank, size=collectives.size)
    if sharded and strategy.device_mesh is not None:
        plain = replicas.drop_copies(plain, strategy.device_mesh)
    # What averages weights now and then declares none of these.
    trains_alone = collectives.size == 1 and Capability.ELASTIC not in strategy.capabilities
    if trains_alone or strategy.capabilities & (Capability.REPLICATED_PARAMETERS | Capability.SHARDED_STATE):
        checkpoint_io.stepped_tensors = partial(optimizer_state.stepped_tensors, strategy.optimizers)
    writes = sharded or checkpoint_io.saves_from_all_ranks or strategy.is_global_zero
    checkpoint_io.save_checkpoint(plain if writes else None, path, collectives=collectives)


def _parameter_tensors(session: Session) -> Iterator[Tensor]:
    """Parameters of all modules, and the tensors that optimizers keep for them, in an order that ranks share."""
    for handle in session.handles:
        yield from handle.module.parameters()
    for optimizer in session.strategy.optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                entry = optimizer.state.get(parameter, {})
                yield from (value for value in entry.values() if hasattr(value, "data_ptr"))


def read(
    session: Session,
    path: PathLike,
    state: Mapping[str, Any] | None,
    check: Callable[[dict[str, Any]], None] | None,
) -> dict[str, Any]:
    """All ranks. See `Session.read_checkpoint`."""
    checkpoint_io, collectives = session.strategy.checkpoint_io, session.collectives
    targets = described = None
    # To read into targets is to restore already: what can't be restored is refused from the description, before.
    if state and checkpoint_io.layout == "sharded":
        described = checkpoint_io.describe_checkpoint(path, collectives=collectives)
        if described is not None:
            if check is not None:
                check(described)
            state_objects.check_kinds(session, dict(state), described)
        own = load_targets.targets_of(session, described, dict(state))
        targets = own and own | rank_state.targets(session, described, dict(state))
    try:
        saved = checkpoint_io.load_checkpoint(path, collectives=collectives, state=targets)
    except BaseException as error:  # also Ctrl-C, between two tensors
        if targets and (not isinstance(error, CheckpointError) or error.overwritten):
            half_loaded.mark(session, dict(state or {}), os.fspath(path))
        raise
    if described is None:
        if check is not None:
            check(saved)
        state_objects.check_kinds(session, dict(state or {}), saved)
    return saved


def restore(session: Session, saved: dict[str, Any], state: Mapping[str, Any], strict: bool) -> dict[str, Any]:
    """All ranks. See `Session.restore_state`."""
    if strict and (missing := [key for key in state if key not in saved]):
        raise CheckpointError(
            f"The checkpoint has no {missing[0]!r}; it has {sorted(saved)}. "
            "Leave it out of the state, or pass strict=False."
        )
    rest = {
        key: value
        for key, value in saved.items()
        if key not in state or not state_objects.restore(session, state[key], value, strict)
    }
    rank_state.restore(session, rest, dict(state))
    if strict:
        half_loaded.forget(session, {key: value for key, value in state.items() if key in saved})
    return rest
