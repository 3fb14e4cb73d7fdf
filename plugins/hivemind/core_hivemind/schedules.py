"""Learning rates that follow the run's steps, so that peers agree on them whenever they have
joined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from core import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.optim import Optimizer


class Schedules:
    """The learning-rate schedulers of a run.

    Args:
        schedulers: those of the module, with interval and frequency, or bare.

    Raises:
        ConfigurationError: one goes by something that peers don't have in common.
    """

    def __init__(self, schedulers: Sequence[Any]) -> None:
        self._schedulers = [
            (getattr(one, "scheduler", one), getattr(one, "frequency", 1)) for one in schedulers
        ]
        for one, (scheduler, _) in zip(schedulers, self._schedulers, strict=True):
            name = type(scheduler).__name__
            if getattr(one, "interval", "step") != "step":
                raise ConfigurationError(
                    f"{name} is stepped by epochs, and each peer has epochs of its own: learning "
                    "rates would differ. Let it follow the run's steps: {'scheduler': ..., "
                    "'interval': 'step', 'frequency': n}."
                )
            if isinstance(scheduler, ReduceLROnPlateau) or getattr(one, "reduce_on_plateau", False):
                raise ConfigurationError(
                    f"{name} goes by a metric, and each peer has one of its own: learning rates "
                    "would differ. Use a scheduler that goes by steps."
                )

    def __bool__(self) -> bool:
        return bool(self._schedulers)

    def advance(self, optimizer: Optimizer, before: int, now: int) -> None:
        """Make the steps that the run has made in between, be it with this peer or without."""
        if now > before:
            optimizer._opt_called = True  # type: ignore[attr-defined]  # torch warns of a step that came without one
        for step in range(before + 1, now + 1):
            for scheduler, frequency in self._schedulers:
                if step % frequency == 0:
                    scheduler.step()
