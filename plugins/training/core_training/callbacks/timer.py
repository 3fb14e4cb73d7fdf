"""Measures the duration of stages, and ends a run after a given time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from core_training.hooks.callback import Callback
from core_training.settings.callback_arguments import check_choice
from core_training.settings.duration import parse_duration
from core_training.signals.exchange_interval import PeriodicVote

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from torch import nn

    from core_training.views.trainer_views import TrainerViews

_STAGES = ("train", "validate", "test", "sanity_check")


class Timer(Callback):
    """Measures training, validation and tests, and stops training when its time is over.

    Time of training includes validations in between, and goes on counting when a run is resumed.
    All ranks stop together, by rank 0's clock.
    """

    def __init__(
        self,
        duration: timedelta | Mapping[str, int] | str | None = None,
        interval: Literal["step", "epoch"] = "step",
        verbose: bool = True,
    ) -> None:
        """Create the callback.

        Args:
            duration: a timedelta, `{"hours": 2}`, or `"DD:HH:MM:SS"`; None only measures.
            interval: stop after any step, or only at the end of an epoch.
            verbose: print a line on rank 0 when the time is over.

        Raises:
            ConfigurationError: of no known form.
        """
        check_choice("Timer", "interval", interval, ("step", "epoch"))
        self._duration_s = None
        if duration is not None:
            self._duration_s = parse_duration("duration", duration).total_seconds()
        self._verbose = verbose
        self.reset_for_fit()
        # Only the hook that is needed: one that is defined is called, and paid for, in each step.
        if duration is not None and interval == "step":
            self.on_train_batch_end = self._check_step  # type: ignore[method-assign]
        elif duration is not None:
            self.on_train_epoch_end = self._check_epoch  # type: ignore[method-assign]

    def reset_for_fit(self) -> None:
        """Nothing was measured yet."""
        self._started_s: dict[str, float] = {}
        self._ended_s: dict[str, float] = {}
        self._earlier_s = dict.fromkeys(_STAGES, 0.0)
        self._is_time = PeriodicVote()

    def start_time(self, stage: str = "train") -> float | None:
        """The begin of a stage, in seconds of the monotonic clock; None if it hasn't begun."""
        return self._started_s.get(stage)

    def end_time(self, stage: str = "train") -> float | None:
        """The end of a stage, in seconds of the monotonic clock; None if it hasn't ended."""
        return self._ended_s.get(stage)

    def time_elapsed(self, stage: str = "train") -> float:
        """Seconds that a stage has taken so far, over all restarts."""
        start_s = self.start_time(stage)
        if start_s is None:
            return self._earlier_s[stage]
        end_s = self._ended_s.get(stage, time.monotonic())
        return self._earlier_s[stage] + end_s - start_s

    def time_remaining(self, stage: str = "train") -> float | None:
        """Seconds until the duration is over; None without one."""
        if self._duration_s is None:
            return None
        return self._duration_s - self.time_elapsed(stage)

    def state_dict(self) -> dict[str, Any]:
        """Seconds so far, by stage."""
        return {"time_elapsed": {stage: self.time_elapsed(stage) for stage in _STAGES}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._earlier_s = {**self._earlier_s, **state["time_elapsed"]}
        self._started_s = {}
        self._ended_s = {}

    def on_train_start(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Begin to measure. A run whose time was over before stops at once."""
        self._begin("train")
        if self._duration_s is not None:
            self._check_epoch(trainer, module)

    def on_train_end(self, trainer: TrainerViews, module: nn.Module) -> None:
        """End of training."""
        self._ended_s["train"] = time.monotonic()

    def on_validation_start(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Begin to measure a validation run, a sanity check or a test; their times add up."""
        self._begin(_evaluation(trainer))

    def on_validation_end(self, trainer: TrainerViews, module: nn.Module) -> None:
        """End of such a run."""
        self._ended_s[_evaluation(trainer)] = time.monotonic()

    on_test_start = on_validation_start
    on_test_end = on_validation_end

    def _check_step(
        self, trainer: TrainerViews, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not trainer.should_stop and self._is_time.ask(trainer.strategy, self._is_over):
            self._stop(trainer)

    def _check_epoch(self, trainer: TrainerViews, module: nn.Module) -> None:
        if trainer.strategy.broadcast(self._is_over()):
            self._stop(trainer)

    def _is_over(self) -> bool:
        remaining_s = self.time_remaining()
        return remaining_s is not None and remaining_s <= 0

    def _stop(self, trainer: TrainerViews) -> None:
        reason = f"Timer: {self.time_elapsed():.1f} s of training are over, so it stops."
        trainer.should_stop = True
        trainer.run.stop_reason = reason
        if self._verbose:
            trainer.print(reason)

    def _begin(self, stage: str) -> None:
        # Before the new start: the time of earlier runs of the stage adds up.
        self._earlier_s[stage] = self.time_elapsed(stage)
        self._started_s[stage] = time.monotonic()
        self._ended_s.pop(stage, None)


def _evaluation(trainer: TrainerViews) -> str:
    """The name of the evaluation that runs."""
    if trainer.sanity_checking:
        return "sanity_check"
    if trainer.stage == "test":
        return "test"
    return "validate"
