"""The states to which a run can go back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract import ConfigurationError
from core_neighbour import MemoryCheckpoint, check_goes_back

if TYPE_CHECKING:
    from core import Trainer


def states_of(who: str, trainer: Trainer) -> MemoryCheckpoint:
    """The callback of the Trainer that keeps them.

    Args:
        who: wants to go back.
        trainer: with all callbacks.

    Raises:
        ConfigurationError: there is none.
        UnsupportedError: its strategy can't go back.
    """
    check_goes_back(who, trainer)
    found = next((each for each in trainer.callbacks if isinstance(each, MemoryCheckpoint)), None)
    if found is None:
        raise ConfigurationError(
            f"{who} goes back to states that a MemoryCheckpoint keeps, and callbacks has none. Add "
            "MemoryCheckpoint() of core.callbacks, or choose another answer."
        )
    return found
