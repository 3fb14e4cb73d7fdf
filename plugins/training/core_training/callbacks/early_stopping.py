"""Ends training when it no longer helps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import torch

from core.contract import ConfigurationError
from core_training.callbacks.rank_zero_decisions import (
    agree_on_metrics,
    judges_after_epochs,
    not_logged,
    origin_of,
)
from core_training.hooks.callback import Callback
from core_training.settings.callback_arguments import check_choice, check_int
from core_training.settings.warn_at import warn_caller

if TYPE_CHECKING:
    from torch import Tensor, nn

    from core_training.views.trainer_views import TrainerViews

_NAME = "EarlyStopping"


class EarlyStopping(Callback):
    """Stops training when a metric has stopped getting better. All ranks stop together, on rank 0's
    value.

    Each value counts once: where nothing was validated since the last check, the check waits for
    the next validation. Checks before `min_epochs` and `min_steps` are reached count, and don't
    stop: the first one after that decides.

    Attributes:
        wait_count: checks since the last improvement.
        stopped_epoch: the epoch in which training was stopped, 0 if it wasn't.
        stopping_reason: why, in words; empty if it wasn't.
    """

    runs_last = True  # metrics of training epochs are complete only then
    found_as = "early_stopping_callback"
    leaves_traces = True

    def __init__(
        self,
        monitor: str,
        *,
        mode: Literal["min", "max"] = "min",
        patience: int = 3,
        min_delta: float = 0.0,
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        verbose: bool = False,
    ) -> None:
        """Create the callback.

        Args:
            monitor: the logged metric.
            mode: `"min"` if less of it is better, `"max"` if more is.
            patience: checks without improvement after which training stops.
            min_delta: an improvement is more than this.
            strict: a metric that isn't there is an error; else that check is left out.
            check_finite: stop when the metric is NaN or infinite.
            stopping_threshold: stop as soon as the metric is better than this.
            divergence_threshold: stop as soon as the metric is worse than this.
            check_on_train_epoch_end: check at the end of epochs rather than of validation runs.
                None: if validation, too, runs once at the end of every epoch.
            verbose: print a line on rank 0 for each improvement, and why training stops.

        Raises:
            ConfigurationError: a mode, patience or min_delta that can't be.
        """
        check_choice(_NAME, "mode", mode, ("min", "max"))
        check_int(_NAME, "patience", patience, least=0, meaning="a number of checks, 0 or more")
        if min_delta < 0:
            raise ConfigurationError(
                f"{_NAME}(min_delta={min_delta!r}): expected 0 or more, for both modes."
            )
        self.monitor = monitor
        self.mode = mode
        self.patience = patience
        self.min_delta = min_delta
        self.strict = strict
        self.check_finite = check_finite
        self.stopping_threshold = stopping_threshold
        self.divergence_threshold = divergence_threshold
        self.check_on_train_epoch_end = check_on_train_epoch_end
        self.verbose = verbose
        self.reset_for_fit()

    def reset_for_fit(self) -> None:
        """No value was seen yet."""
        self.wait_count = 0
        self.stopped_epoch = 0
        self.stopping_reason = ""
        self._best = {"min": math.inf, "max": -math.inf}[self.mode]
        self._renewed: set[str] = set()
        self._waits = False

    @property
    def state_key(self) -> str:
        """Distinguishes several of these in one trainer."""
        return self._key_with(monitor=self.monitor, mode=self.mode)

    @property
    def best_score(self) -> Tensor:
        """The best value so far, a scalar; infinitely bad before the first check."""
        return torch.tensor(self._best, dtype=torch.float64)

    def state_dict(self) -> dict[str, Any]:
        """The number of checks without improvement, the best score, and the stop, if there was
        one.
        """
        return {
            "wait_count": self.wait_count,
            "best_score": self._best,
            "stopped_epoch": self.stopped_epoch,
            "stopping_reason": self.stopping_reason,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.wait_count = state["wait_count"]
        self._best = state["best_score"]
        self.stopped_epoch = state["stopped_epoch"]
        self.stopping_reason = state["stopping_reason"]

    def on_train_start(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Decide when to check."""
        self._renewed = set()
        self._waits = False
        self._after_epoch = judges_after_epochs(trainer, self.check_on_train_epoch_end)

    def on_validation_end(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Check, if validation has a rhythm of its own."""
        if trainer.stage != "fit" or trainer.sanity_checking:
            return
        self._renewed.add("validation")
        if not self._after_epoch:
            self._check(trainer)

    def on_train_epoch_end(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Check, if validation has no rhythm of its own."""
        self._renewed.add("epoch")
        if self._after_epoch or self._waits:
            self._check(trainer)

    def _check(self, trainer: TrainerViews) -> None:
        origin = origin_of(trainer, self.monitor)
        self._waits = origin in ("epoch", "validation") and origin not in self._renewed
        if self._waits:
            return
        self._renewed.discard(origin or "")
        values = agree_on_metrics(trainer)
        if self.monitor in values:
            self._judge(trainer, values[self.monitor])
        elif origin != "step":  # else no batch has logged it yet
            error = not_logged(_NAME, self.monitor, values)
            if self.strict:
                raise error
            warn_caller(f"{error} This check is left out, since strict=False.")

    def _judge(self, trainer: TrainerViews, value: float) -> None:
        reason = self._reason_to_stop(trainer, value)
        if reason is None or not trainer.run.has_reached_least:
            return
        self.stopped_epoch = trainer.current_epoch
        self.stopping_reason = reason
        trainer.should_stop = True
        trainer.run.stop_reason = f"{_NAME}: {reason}"
        if self.check_finite and not math.isfinite(value) and trainer.is_global_zero:
            warn_caller(f"{_NAME} ends the run: {reason}")
        elif self.verbose:
            trainer.print(f"{_NAME}: {reason}")

    def _reason_to_stop(self, trainer: TrainerViews, value: float) -> str | None:
        """The reason to stop training; None without one."""
        good, bad = self.stopping_threshold, self.divergence_threshold
        if self.check_finite and not math.isfinite(value):
            return f"{self.monitor} is {value}, which is not a finite number."
        if good is not None and self._is_better(value, good):
            return f"{self.monitor} is {value:.4g}, better than the threshold {good:.4g}."
        if bad is not None and self._is_better(bad, value):
            return f"{self.monitor} is {value:.4g}, worse than the threshold {bad:.4g}."
        if self._is_better(value, self._best, by=self.min_delta):
            if self.verbose:
                trainer.print(f"{_NAME}: {self.monitor} improved to {value:.4g}.")
            self._best = value
            self.wait_count = 0
            return None
        self.wait_count += 1
        if self.wait_count < self.patience:
            return None
        return (
            f"{self.monitor} is {value:.4g}, and did not get better than {self._best:.4g} in "
            f"{self.wait_count} checks (patience={self.patience}, min_delta={self.min_delta:g})."
        )

    def _is_better(self, value: float, other: float, by: float = 0.0) -> bool:
        if self.mode == "min":
            return value < other - by
        return value > other + by
