"""Searches for settings with Lightning's numbers: rates, smoothing, the end of a search, and the
suggestion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from core import Callback, ConfigurationError, Trainer
from core.trainer import FitCall
from core_training.tuning import BatchSizeFinder as CoreBatchSizeFinder
from core_training.tuning import LearningRateCurve as CoreLearningRateCurve
from core_training.tuning import LearningRateFinder as CoreLearningRateFinder
from core_training.tuning import Tuner as CoreTuner

_SMOOTHING = 0.98


@dataclass
class LearningRateCurve(CoreLearningRateCurve):
    """Smoothed losses by learning rate; see `core_training.tuning.LearningRateCurve`."""

    def rate_at(self, index: int) -> float:
        """The rate of a step, from 0: the first one is `lr_min`, and the second one two steps
        on.
        """
        if index == 0:
            return self.lr_min
        share = (index + 1) / self.num_training
        if self.mode == "linear":
            return self.lr_min + share * (self.lr_max - self.lr_min)
        return float(self.lr_min * (self.lr_max / self.lr_min) ** share)

    def suggestion(self, skip_begin: int = 10, skip_end: int = 1) -> float | None:
        """The rate at which the smoothed loss falls most steeply by the rate itself; None for fewer
        than two losses.
        """
        pairs = list(zip(self.results["lr"], self.results["loss"], strict=True))
        found = [pair for pair in pairs[skip_begin:-skip_end] if math.isfinite(pair[1])]
        if len(found) < 2:
            return None
        rates, losses = torch.tensor(found).unbind(1)
        slopes = torch.gradient(losses, spacing=[rates])[0]
        return found[int(slopes.argmin())][0]


class LearningRateSearch(Callback):
    """Fills a curve. A smoothed loss that is `early_stop_threshold` times the best one ends the
    search.
    """

    def __init__(
        self, curve: LearningRateCurve, early_stop_threshold: float | None, max_epochs: int | None
    ) -> None:
        self.curve, self._threshold, self._max_epochs = curve, early_stop_threshold, max_epochs
        self._average = self._best = 0.0

    def state_dict(self) -> dict[str, Any]:
        """The result, on its way from ranks in other processes."""
        return dict(self.curve.results)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result."""
        self.curve.results = dict(state)

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Disable the module's schedulers, and begin with the smallest rate."""
        trainer.strategy.lr_schedulers = []
        self._set_rate(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """All ranks, after an optimizer step: note the loss of its last batch, and raise the
        rate.
        """
        rates, losses = self.curve.results["lr"], self.curve.results["loss"]
        step = len(losses) + 1
        if trainer.global_step != step:
            return
        rates.append(self.curve.rate_at(step - 1))
        loss = outputs
        if isinstance(outputs, dict):
            loss = outputs.get("loss")
        smoothed = math.nan
        if loss is not None:
            # Under Lightning a window's losses are divided by its length.
            self._average *= _SMOOTHING
            self._average += (1 - _SMOOTHING) * (float(loss) / trainer.accumulate_grad_batches)
            smoothed = self._average / (1 - _SMOOTHING ** (step + 1))
        losses.append(smoothed)
        is_last_epoch = trainer.current_epoch + 1 == self._max_epochs
        ends = is_last_epoch and batch_idx + 1 == trainer.num_training_batches
        if self._threshold is not None and step > 1:
            ends = ends or smoothed > self._threshold * self._best
        if trainer.strategy.broadcast(ends):
            trainer.should_stop = True
        if smoothed < self._best or step == 1:
            self._best = smoothed
        self._set_rate(trainer)

    def _set_rate(self, trainer: Trainer) -> None:
        rate = self.curve.rate_at(len(self.curve.results["loss"]))
        for group in trainer.strategy.optimizers[0].param_groups:
            group["lr"] = rate


class LearningRateFinder(CoreLearningRateFinder):
    """Finds a learning rate before training; see `core.callbacks.LearningRateFinder`. All groups
    get one rate.
    """

    def search(self, trainer: Trainer, call: FitCall) -> LearningRateCurve:
        """Search. The module gets the rate if `update_attr` says so."""
        curve = LearningRateCurve(self.mode, self.min_lr, self.max_lr, self.num_training_steps)
        search = LearningRateSearch(curve, self.early_stop_threshold, trainer.max_epochs)
        trainer.fit_on_copies(call, search, max_steps=curve.num_training)
        self.adopt(curve, call)
        return curve


class BatchSizeFinder(CoreBatchSizeFinder):
    """Finds the largest batches that fit; see `core.callbacks.BatchSizeFinder`.

    Args:
        margin: share by which the result of `"binsearch"` is reduced.
        max_val: the largest size.
    """

    def __init__(
        self,
        mode: Literal["power", "binsearch"] = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        margin: float = 0.05,
        max_val: int = 8192,
    ) -> None:
        if not 0 <= margin < 1 or max_val < 1:
            raise ConfigurationError(
                f"BatchSizeFinder({margin=}, {max_val=}): expected 0 <= margin < 1, and a size."
            )
        sizes = 1 + max(0, math.ceil(math.log2(max_val / init_val)))
        super().__init__(mode, steps_per_trial, init_val, min(max_trials, sizes), batch_arg_name)
        self.margin, self.max_val = margin, max_val

    def accepted(self, size: int) -> int:
        """The size that is written, for the one that was found."""
        size = min(size, self.max_val)
        if self.mode == "binsearch":
            size = max(1, int(size * (1 - self.margin)))
        return size


class Tuner(CoreTuner):
    """Searches for settings; see `core.Tuner`."""

    learning_rate_finder = LearningRateFinder
    batch_size_finder = BatchSizeFinder
