"""Checkpoints without frozen parameters, which the program has from elsewhere:
`Trainer(save_only="trainable")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core.checkpoint import chunks_to_write, shape_of
from core.contract import CheckpointError
from core.session import canonical_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.contract import PathLike
    from core_training.run import Frozen, Run


def trained_state(run: Run) -> dict[str, object]:
    """All ranks. The module's state without its frozen parameters."""
    frozen = _frozen(run)
    state = run.strategy.get_module_state_dict(run.module)
    return {name: value for name, value in state.items() if name not in frozen}


def describe_frozen(run: Run) -> dict[str, Frozen]:
    """All ranks. The frozen parameters, described on rank 0; added up once, and again where one has
    changed.
    """
    frozen = _frozen(run)
    known = run.described_frozen
    if known is None or not run.strategy.reduce_boolean_decision(known[0] == frozen):
        state = run.strategy.get_module_state_dict(run.module)
        own = {
            name: _part(name, leaf, run.strategy.global_rank)
            for name, leaf in state.items()
            if name in frozen
        }
        found: dict[str, Frozen] = {}
        for parts in run.strategy.gather_objects(own) or ():
            for name, (shape, dtype, total, size) in parts.items():
                _, _, others, sizes = found.get(name, (shape, dtype, 0.0, 0.0))
                found[name] = (shape, dtype, others + total, sizes + size)
        known = (frozen, found)
        run.described_frozen = known
    return known[1]


def check_trained(
    run: Run, saved: Mapping[str, object], form: Mapping[str, Any], path: PathLike
) -> None:
    """All ranks. Check that a checkpoint of `trained_state` lacks only what is frozen here too,
    with the same values.

    Raises:
        CheckpointError: it lacks a parameter that trains, or a buffer; or was saved beside other
            frozen values.
    """
    cure = "go on with parts of it: resume=Resume(strict=False)."
    frozen = _frozen(run)
    for name in map(canonical_name, run.module.state_dict()):
        if name not in saved and name not in frozen:
            raise CheckpointError(
                f"{path} was saved by save_only='trainable' and lacks {name!r}, which isn't frozen "
                f"here. Freeze what was frozen when it was saved, or {cure}"
            )
    here = run.strategy.broadcast(describe_frozen(run))
    for name, there in form.get("frozen", {}).items():
        if name in here and _differ(there, here[name]):
            raise CheckpointError(
                f"{path} was saved by save_only='trainable' beside another {name!r}, which is "
                f"frozen: shape, dtype, sum and sum of absolute values were {there}, and are "
                f"{here[name]}. Load the values that the run began with, or {cure}"
            )


def _frozen(run: Run) -> dict[str, int]:
    """Frozen parameters, and how often each was changed in place."""
    return {
        canonical_name(name): one._version
        for name, one in run.module.named_parameters()
        if not one.requires_grad
    }


def _part(name: str, leaf: Any, rank: int) -> Frozen:
    """Of this rank's part. Tensors of other classes, such as quantized ones, add up to 0: they may
    have no sum.
    """
    sums = torch.zeros(2)
    for chunk in chunks_to_write(name, leaf, rank):
        if type(chunk.tensor) is torch.Tensor:
            for piece in chunk.tensor.reshape(-1).split(2**24):
                values = piece.cpu().double()
                sums = sums + torch.stack([values.sum(), values.abs().sum()])
    total, size = sums.tolist()
    return shape_of(leaf), str(leaf.dtype), total, size


def _differ(saved: Frozen, own: Frozen) -> bool:
    """True if values differ by more than the order in which ranks add; of another dtype only shapes
    are compared.
    """
    if list(saved[0]) != list(own[0]):
        return True
    tolerance = 1e-9 * own[3]
    return saved[1] == own[1] and any(
        abs(one - other) > tolerance for one, other in zip(saved[2:], own[2:], strict=True)
    )
