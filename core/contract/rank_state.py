"""The state that each rank of a strategy keeps for itself, beside what all have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping


@runtime_checkable
class KeepsRankState(Protocol):
    """A strategy whose ranks keep something of their own: the rest of a compression, counters, random numbers.

    A strategy that has both methods keeps rank state. Every checkpoint with an optimizer in it holds that of all ranks,
    with the Trainer and with `fabric.save`, and a run that goes on in as many processes gets it back, each rank its
    own. In another number of processes it begins anew, and a warning says so. What all ranks have in common, such as
    weights that `synchronize_model` has brought together, isn't part of it.
    """

    def rank_state_dict(self) -> dict[str, Any] | None:
        """All ranks. The state of this rank: nested dicts with keys of text, and lists, of plain values and tensors.

        Returns:
            None, on all ranks, where this instance keeps nothing.
        """

    def load_rank_state_dict(self, state: Mapping[str, Any]) -> None:
        """All ranks, after modules and optimizers. Restore what this rank returned; tensors are on the CPU.

        Raises:
            CheckpointError: it is of other options than this instance has.
        """
