"""Downloads and the like, before any rank reads what they write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.trainer.hooks.events import overrides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.contract import Strategy
    from core.trainer.hooks.data_hooks import DataHooks


def prepare_data(strategy: Strategy, owners: Sequence[Any]) -> None:
    """All ranks. Run the hook `prepare_data` in one process of each node, or in one; the others wait for it."""
    preparing = [owner for owner in owners if owner is not None and overrides(owner, "prepare_data")]
    for owner in preparing:
        if _is_chosen(strategy, owner):
            owner.prepare_data()
    # The hooks are the same on all ranks, so all come to the barrier or none.
    if preparing:
        strategy.barrier("prepare_data")


def _is_chosen(strategy: Strategy, owner: DataHooks) -> bool:
    per_node = getattr(owner, "prepare_data_per_node", True)
    return strategy.local_rank == 0 if per_node else strategy.is_global_zero
