"""Early stopping as Lightning does it: at its moments, by methods of its names."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from core import ConfigurationError
from core.callbacks import EarlyStopping as CoreEarlyStopping
from core.contract import did_you_mean


class EarlyStoppingReason(Enum):
    """The reasons to stop."""

    NOT_STOPPED = 0
    STOPPING_THRESHOLD = 1
    DIVERGENCE_THRESHOLD = 2
    PATIENCE_EXHAUSTED = 3
    NON_FINITE_METRIC = 4


class EarlyStopping(CoreEarlyStopping):
    """See `core.callbacks.EarlyStopping`.

    It judges the newest value at each check, and asks to stop before `min_epochs` and `min_steps`
    too: training stops as soon as they are reached. A subclass may override its private methods, as
    under Lightning.
    """

    mode_dict: ClassVar[dict[str, Any]] = {"min": torch.lt, "max": torch.gt}
    order_dict: ClassVar[dict[str, str]] = {"min": "<", "max": ">"}
    best_score: Tensor = torch.tensor(torch.inf)  # an attribute, which may be set

    def __init__(
        self,
        monitor: str,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool = False,
        mode: Literal["min", "max"] = "min",
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        log_rank_zero_only: bool = False,
    ) -> None:
        super().__init__(
            monitor,
            mode=mode,
            patience=patience,
            strict=strict,
            check_finite=check_finite,
            stopping_threshold=stopping_threshold,
            divergence_threshold=divergence_threshold,
            verbose=verbose,
        )
        self.min_delta = min_delta
        if mode == "min":
            self.min_delta = -min_delta
        self.log_rank_zero_only = log_rank_zero_only
        self._check_on_train_epoch_end = check_on_train_epoch_end

    def reset_for_fit(self) -> None:
        """No value was seen yet."""
        super().reset_for_fit()
        self.best_score = torch.tensor(torch.inf)
        if self.mode == "max":
            self.best_score = -self.best_score
        self.stopping_reason: Any = EarlyStoppingReason.NOT_STOPPED
        self.stopping_reason_message: str | None = None

    @property
    def monitor_op(self) -> Any:
        """The comparison by which a value is better than another one."""
        return self.mode_dict[self.mode]

    def setup(self, trainer: Any, module: nn.Module, stage: str) -> None:
        """Decide when to check."""
        if self._check_on_train_epoch_end is None:
            interval, every = trainer.val_check_interval, trainer.check_val_every_n_epoch
            self._check_on_train_epoch_end = interval in (None, 1) and every == 1

    def on_train_start(self, trainer: Any, module: nn.Module) -> None:
        """Nothing to note: `setup` has decided."""

    def on_train_epoch_end(self, trainer: Any, module: nn.Module) -> None:
        """Check, if validation has no rhythm of its own."""
        if self._check_on_train_epoch_end and not self._should_skip_check(trainer):
            self._run_early_stopping_check(trainer)

    def on_validation_end(self, trainer: Any, module: nn.Module) -> None:
        """Check, if validation has a rhythm of its own."""
        if not self._check_on_train_epoch_end and not self._should_skip_check(trainer):
            self._run_early_stopping_check(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The number of checks without improvement, the best score, and the stop, if there was
        one.
        """
        return {
            "wait_count": self.wait_count,
            "stopped_epoch": self.stopped_epoch,
            "best_score": self.best_score,
            "patience": self.patience,
            "stopping_reason": self.stopping_reason.value,
            "stopping_reason_message": self.stopping_reason_message,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.wait_count, self.stopped_epoch = state["wait_count"], state["stopped_epoch"]
        self.best_score = torch.as_tensor(state["best_score"])
        self.patience = state.get("patience", self.patience)
        reason = state.get("stopping_reason")
        if isinstance(reason, int):  # core's is a text
            self.stopping_reason = EarlyStoppingReason(reason)
        self.stopping_reason_message = state.get("stopping_reason_message")

    def _should_skip_check(self, trainer: Any) -> bool:
        return bool(trainer.stage != "fit" or trainer.sanity_checking)

    def _validate_condition_metric(self, logs: Mapping[str, Tensor]) -> bool:
        if self.monitor in logs:
            return True
        if self.strict:
            names = ", ".join(map(repr, logs)) or "nothing"
            raise ConfigurationError(
                f"EarlyStopping monitors {self.monitor!r}, which was not logged; logged was "
                f"{names}.{did_you_mean(self.monitor, logs)} Log it, monitor one of those, or pass "
                "strict=False."
            )
        return False

    def _run_early_stopping_check(self, trainer: Any) -> None:
        """All ranks. Judge rank 0's value, and ask to stop."""
        logs = trainer.strategy.broadcast(trainer.callback_metrics)
        if not self._validate_condition_metric(logs):
            return
        stops, reason = self._evaluate_stopping_criteria(
            torch.as_tensor(logs[self.monitor]).squeeze()
        )
        if stops:
            trainer.should_stop, trainer.run.stop_reason = True, f"EarlyStopping: {reason}"
            self.stopped_epoch, self.stopping_reason_message = trainer.current_epoch, reason
        if reason and self.verbose:
            trainer.print(f"EarlyStopping: {reason}")

    def _evaluate_stopping_criteria(self, current: Tensor) -> tuple[bool, str | None]:
        best, worst = self.stopping_threshold, self.divergence_threshold
        said = f"{self.monitor} is {current:.4g},"
        if self.check_finite and not torch.isfinite(current):
            self.stopping_reason = EarlyStoppingReason.NON_FINITE_METRIC
            return True, f"{said} which is not a finite number."
        if best is not None and self.monitor_op(current, best):
            self.stopping_reason = EarlyStoppingReason.STOPPING_THRESHOLD
            return True, f"{said} better than the threshold {best:.4g}."
        if worst is not None and self.monitor_op(-current, -worst):
            self.stopping_reason = EarlyStoppingReason.DIVERGENCE_THRESHOLD
            return True, f"{said} worse than the threshold {worst:.4g}."
        if self.monitor_op(current - self.min_delta, self.best_score.to(current.device)):
            message = self._improvement_message(current)
            self.best_score, self.wait_count = current, 0
            return False, message
        self.wait_count += 1
        if self.wait_count < self.patience:
            return False, None
        self.stopping_reason = EarlyStoppingReason.PATIENCE_EXHAUSTED
        return True, (
            f"{said} and did not get better than {self.best_score:.4g} in the last "
            f"{self.wait_count} checks."
        )

    def _improvement_message(self, current: Tensor) -> str:
        improved = f"{self.monitor} improved"
        if torch.isfinite(self.best_score):
            improved = f"{improved} from {self.best_score:.4g}"
        return f"{improved} to {current:.4g}."
