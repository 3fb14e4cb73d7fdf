"""The callback of a search for a learning rate: raises the rate with each step, and notes the
loss.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from core.contract import ConfigurationError
from core_training.callbacks import Callback

if TYPE_CHECKING:
    from torch import nn

    from core_training.trainer import Trainer
    from core_training.tuning.learning_rate_curve import LearningRateCurve

_SMOOTHING = 0.98
_NUM_UNSETTLED = 10  # the mean of so few losses may be low by luck


class LearningRateSearch(Callback):
    """Fills a curve. Its losses are means over ranks and accumulation windows, smoothed
    exponentially.
    """

    def __init__(self, curve: LearningRateCurve, early_stop_threshold: float | None) -> None:
        self.curve = curve
        self._threshold = early_stop_threshold
        self._average = 0.0
        self._best = math.inf
        self._window: list[Tensor] = []
        self._num_steps = 0
        self._is_over = False

    def state_dict(self) -> dict[str, Any]:
        """The result, on its way from ranks in other processes."""
        return dict(self.curve.results)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result."""
        self.curve.results = dict(state)

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Disable the module's schedulers, and begin with the smallest rate."""
        trainer.strategy.lr_schedulers = []
        optimizers = trainer.strategy.optimizers
        if len(optimizers) != 1:
            raise ConfigurationError(
                "A search for a learning rate needs one optimizer, and "
                f"{type(module).__name__}.configure_optimizers returned {len(optimizers)}. Try "
                "values in a loop with Trainer(max_steps=100)."
            )
        self._groups = optimizers[0].param_groups
        rates = [float(group.get("initial_lr", group["lr"])) for group in self._groups]
        self._shares = [1.0] * len(rates)
        if rates[0]:
            self._shares = [rate / rates[0] for rate in rates]
        self._set_rate()

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note a batch's loss, and after an optimizer step their mean."""
        loss = outputs
        if isinstance(outputs, dict):
            loss = outputs.get("loss")
        if isinstance(loss, Tensor):
            self._window.append(loss.detach().float().reshape(()))
        if self._is_over or trainer.global_step == self._num_steps or not self._window:
            return
        self._num_steps = trainer.global_step
        loss = float(trainer.strategy.reduce(torch.stack(self._window).mean()))
        self._window = []
        self._is_over = not self._note(loss)
        if self._is_over:
            trainer.should_stop = True
        else:
            self._set_rate()

    def _note(self, loss: float) -> bool:
        """Note the loss of a step. False if the search has to end here; the same on all ranks."""
        results = self.curve.results
        if not math.isfinite(loss):
            return False
        index = len(results["loss"])
        self._average = _SMOOTHING * self._average + (1 - _SMOOTHING) * loss
        smoothed = self._average / (1 - _SMOOTHING ** (index + 1))
        results["lr"].append(self.curve.rate_at(index))
        results["loss"].append(smoothed)
        if index >= _NUM_UNSETTLED:
            self._best = min(self._best, smoothed)
        diverges = self._threshold is not None and smoothed > self._threshold * self._best
        return not diverges and len(results["loss"]) < self.curve.num_training

    def _set_rate(self) -> None:
        rate = self.curve.rate_at(len(self.curve.results["loss"]))
        for group, share in zip(self._groups, self._shares, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * share)
            else:
                group["lr"] = rate * share
