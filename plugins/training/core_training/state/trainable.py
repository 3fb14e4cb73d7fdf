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
    frozen, state = _frozen(run), run.strategy.get_module_state_dict(run.module)
    return {name: value for name, value in state.items() if name not in frozen}


def describe_frozen(run: Run) -> dict[str, Frozen]:
    """All ranks. The frozen parameters, described on rank 0; added up once, and again where one has
    changed.
    """
    frozen, known = _frozen(run), run.described_frozen
    if known is None or not run.strategy.reduce_boolean_decision(known[0] == frozen):
        found: dict[str, Frozen] = {}
        state = run.strategy.get_module_state_dict(run.module)
        own = {
            name: _part(name, leaf, run.strategy.global_rank)
            for name, leaf in state.items()
            if name in frozen
        }
        for name, part in (
            item for each in run.strategy.gather_objects(own) or () for item in each.items()
        ):
            others = found.get(name, (*part[:2], 0.0, 0.0))
            found[name] = (*part[:2], others[2] + part[2], others[3] + part[3])
        run.described_frozen = known = frozen, found
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
    own, cure = (
        map(canonical_name, run.module.state_dict()),
        "go on with parts of it: resume=Resume(strict=False).",
    )
    if lacking := [name for name in own if name not in saved and name not in _frozen(run)]:
        raise CheckpointError(
            f"{path} was saved by save_only='trainable' and lacks {lacking[0]!r}, which isn't "
            f"frozen here. Freeze what was frozen when it was saved, or {cure}"
        )
    here, known = run.strategy.broadcast(describe_frozen(run)), form.get("frozen", {})
    if others := [name for name in known if name in here and _differ(known[name], here[name])]:
        raise CheckpointError(
            f"{path} was saved by save_only='trainable' beside another {others[0]!r}, which is "
            f"frozen: shape, dtype, sum and sum of absolute values were {known[others[0]]}, and "
            f"are {here[others[0]]}. Load the values that the run began with, or {cure}"
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
    held = [
        one.tensor for one in chunks_to_write(name, leaf, rank) if type(one.tensor) is torch.Tensor
    ]
    pieces = (piece.cpu().double() for tensor in held for piece in tensor.reshape(-1).split(2**24))
    total, size = sum(
        (torch.stack([piece.sum(), piece.abs().sum()]) for piece in pieces), torch.zeros(2)
    ).tolist()
    return shape_of(leaf), str(leaf.dtype), total, size


def _differ(saved: Frozen, own: Frozen) -> bool:
    """True if values differ by more than the order in which ranks add; of another dtype only shapes
    are compared.
    """
    pairs = zip(saved[2:], own[2:], strict=True) if saved[1] == own[1] else ()
    return [*saved[0]] != [*own[0]] or any(abs(one - other) > 1e-9 * own[3] for one, other in pairs)
