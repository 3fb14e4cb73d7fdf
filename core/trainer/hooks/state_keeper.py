"""Callbacks that keep states of a run by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from core.contract import CheckpointIO, PathLike


class GoBack(Exception):
    """Raised by a callback on all ranks, between two optimizer steps: `fit` goes on from the state at its argument."""


@runtime_checkable
class StateKeeper(Protocol):
    """A callback that keeps states by itself, from which `fit(ckpt_path="last")` may continue.

    It writes them by `trainer.save_snapshot`.
    """

    def newest(self, trainer: Any, other: str | None) -> str | None:
        """All ranks. The path of the newest state that it has; None if `other` is newer.

        Args:
            trainer: which looks for something to continue from.
            other: the newest other checkpoint; None without one.
        """

    def storage_of(self, path: PathLike) -> CheckpointIO | None:
        """The CheckpointIO that reads this path; None if the strategy's does."""
