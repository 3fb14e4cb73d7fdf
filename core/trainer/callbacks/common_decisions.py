"""Decisions that the ranks take together: each may see other metrics and other clocks, so rank 0's count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract import ConfigurationError
from core.trainer.settings.options import is_whole
from core.trainer.signals.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from core.contract import Strategy
    from core.trainer.trainer import Trainer


def agree_on_metrics(trainer: Trainer) -> dict[str, float]:
    """All ranks. The values logged so far, as rank 0 sees them."""
    values = None
    if trainer.is_global_zero:
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return dict(trainer.strategy.broadcast(values))


def is_awaited(trainer: Trainer, name: str) -> bool:
    """All ranks. True if training collects this metric, and its first epoch isn't over; rank 0's answer."""
    return bool(trainer.strategy.broadcast(name in trainer.logged.train.names()))


def not_logged(who: str, name: str, logged: Iterable[str]) -> ConfigurationError:
    """The error for a metric that was not logged."""
    names = ", ".join(map(repr, sorted(logged))) or "nothing"
    return ConfigurationError(
        f"{who} monitors {name!r}, which was not logged; logged was {names}. "
        f"Call self.log({name!r}, ...) in a step of the module, or monitor one of those."
    )


def validates_within_epochs(trainer: Trainer) -> bool:
    """True if validation has another rhythm than once at the end of every epoch."""
    options = trainer.options
    by_epoch = is_whole(options.val_check_interval) and options.val_check_time is None
    regular = by_epoch and options.check_val_every_n_epoch == 1
    return bool(trainer.loaders.validation) and not regular


class PacedQuestion:
    """A question that rank 0 answers by its clock. Asked on all ranks in every step, exchanged about twice a second."""

    def __init__(self) -> None:
        self._pace, self._num_steps = Pace(), 0

    def ask(self, strategy: Strategy, decide: Callable[[], bool]) -> bool:
        """All ranks, in every step. Rank 0's answer, if it is due; until then no.

        Args:
            strategy: connects the ranks.
            decide: called on all ranks when the question is due; rank 0's answer counts.
        """
        self._num_steps += 1
        if self._num_steps < self._pace.num_steps:
            return False
        answer, self._pace.num_steps = strategy.broadcast((decide(), self._pace.propose(self._num_steps)))
        self._num_steps = 0
        self._pace.begin()
        return bool(answer)
