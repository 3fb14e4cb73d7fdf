"""Checkpoints without frozen parameters, which the program has from elsewhere: `Trainer(save_only="trainable")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract import CheckpointError
from core.session import canonical_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.contract import PathLike
    from core.trainer.run import Run


def trained_state(run: Run) -> dict[str, object]:
    """All ranks. The module's state without its frozen parameters."""
    frozen, state = _frozen(run), run.strategy.get_module_state_dict(run.module)
    return {name: value for name, value in state.items() if name not in frozen}


def check_trained(run: Run, saved: Mapping[str, object], path: PathLike) -> None:
    """All ranks. Check that a checkpoint of `trained_state` lacks only what is frozen here too.

    Raises:
        CheckpointError: it lacks a parameter that trains, or a buffer.
    """
    own = map(canonical_name, run.module.state_dict())
    if lacking := [name for name in own if name not in saved and name not in _frozen(run)]:
        raise CheckpointError(
            f"{path} was saved by save_only='trainable' and lacks {lacking[0]!r}, which isn't frozen here. Freeze what "
            "was frozen when it was saved, or go on with parts of it: resume=Resume(strict=False)."
        )


def _frozen(run: Run) -> set[str]:
    return {canonical_name(name) for name, each in run.module.named_parameters() if not each.requires_grad}
