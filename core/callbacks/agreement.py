"""What the ranks decide together: each may see other metrics and other clocks, so that rank 0's count."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from core.contract import Strategy


def agree_on_metrics(trainer: Any) -> dict[str, float]:
    """All ranks. What was logged so far, as rank 0 sees it."""
    values = None
    if trainer.is_global_zero:
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return dict(trainer.strategy.broadcast(values))


def not_logged(who: str, name: str, logged: Iterable[str]) -> ConfigurationError:
    """The error for a metric that nobody logged."""
    names = ", ".join(map(repr, sorted(logged))) or "nothing"
    return ConfigurationError(
        f"{who} monitors {name!r}, which was not logged; logged was {names}. "
        f"Call self.log({name!r}, ...) in a step of the module, or monitor one of those."
    )


def validates_within_epochs(trainer: Any) -> bool:
    """Whether validation has another rhythm than once at the end of every epoch."""
    options, interval = trainer.options, trainer.options.val_check_interval
    by_epoch = interval is None or (isinstance(interval, float) and interval == 1.0)
    regular = by_epoch and options.val_check_time is None and options.check_val_every_n_epoch == 1
    return bool(trainer.loaders.validation) and not regular


class PacedQuestion:
    """A question that rank 0 answers by its clock, asked on all ranks in every step.

    The answer is exchanged every so many steps, about twice a second: an exchange in each step would cost more than
    the step's own bookkeeping.
    """

    def __init__(self, period_s: float = 0.5) -> None:
        self._period_s = period_s
        self._every = 1
        self._num_steps = 0
        self._asked_s: float | None = None

    def ask(self, strategy: Strategy, decide: Callable[[], bool]) -> bool:
        """All ranks, in every step. Rank 0's answer, if it is due; until then no.

        Args:
            strategy: connects the ranks.
            decide: called on all ranks when the question is due; rank 0's answer counts.
        """
        self._num_steps += 1
        if self._num_steps < self._every:
            return False
        answer, self._every = strategy.broadcast((decide(), self._choose_pace()))
        self._num_steps = 0
        return bool(answer)

    def _choose_pace(self) -> int:
        now_s = time.monotonic()
        last_s, self._asked_s = self._asked_s, now_s
        if last_s is None or now_s <= last_s:
            return 1
        fitting = self._period_s * self._num_steps / (now_s - last_s)
        return max(1, min(int(fitting), 2 * self._num_steps))
