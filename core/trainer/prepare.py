"""Downloads and the like, before anybody reads what they write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.trainer.events import overrides

if TYPE_CHECKING:
    from core.contract import Strategy
    from core.trainer.data_hooks import DataHooks
    from core.trainer.trainer import Trainer


def prepare_data(trainer: Trainer) -> None:
    """All ranks. Run the hook `prepare_data` in one process of each node, or in one; the others wait for it."""
    owners = [
        owner
        for owner in (trainer.datamodule, trainer.module)
        if owner is not None and overrides(owner, "prepare_data")
    ]
    for owner in owners:
        if _is_chosen(trainer.strategy, owner):
            owner.prepare_data()
    if owners:
        trainer.strategy.barrier("prepare_data")


def _is_chosen(strategy: Strategy, owner: DataHooks) -> bool:
    per_node = getattr(owner, "prepare_data_per_node", True)
    return strategy.local_rank == 0 if per_node else strategy.is_global_zero
