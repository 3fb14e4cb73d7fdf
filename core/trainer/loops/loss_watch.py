"""Losses that are NaN or infinite: a warning where a loss is read anyway, or the end of the run if a user wants it."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from core.contract import NonFiniteLossError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from torch import nn

    from core.contract import Strategy
    from core.trainer.loops.progress import Progress

_TRAINING = "training"
_CURE = (
    "Weights that come of it are useless. Trainer(terminate_on_nan=True) ends the run before such a loss reaches them, "
    "and detect_anomaly=True finds the operation whose gradient is NaN. A smaller learning rate, gradient_clip_val, or "
    "another precision may prevent it."
)


class LossWatch:
    """Warns once a stage of a training loss, and once of every other loss that is logged. Never waits for the device.

    Its callers look where values are read in any case: when the bar is drawn, when loggers get a step's values, and at
    an epoch's end. What is logged counts as a loss if its name says so.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._told: set[str] = set()

    def begin_stage(self) -> None:
        """Forget the warnings given so far."""
        self._told.clear()

    def look_at_output(self, output: Any, module: nn.Module, strategy: Strategy) -> None:
        """Check the last output of the module's `training_step` on this rank. Waits for it."""
        loss = output.get("loss") if isinstance(output, dict) else output
        if isinstance(loss, Tensor) and not _is_finite(loss):
            value = loss.item() if loss.numel() == 1 else loss
            where = f" on rank {strategy.global_rank}" if strategy.world_size > 1 else ""
            self._tell(_TRAINING, f"{type(module).__name__}.training_step returned a loss of {value}{where}")

    def look_at_values(self, values: Mapping[str, float], *, training: Collection[str] = ()) -> None:
        """Logged values by name, of which some are training's."""
        for name, value in values.items():
            if not math.isfinite(value) and "loss" in name.lower():
                # The loss that training_step returned and one that it logged are told as one.
                self._tell(_TRAINING if name in training else name, f"The logged loss {name!r} is {value}")

    def _tell(self, key: str, what: str) -> None:
        if key not in self._told:
            self._told.add(key)
            warnings.warn(
                f"{what}, seen at step {self._progress.global_step}, in epoch {self._progress.epoch}. {_CURE}",
                stacklevel=3,
            )


def guarded(
    compute_loss: Callable[[Any, int], Tensor | None], module: nn.Module, progress: Progress
) -> Callable[[Any, int], Tensor | None]:
    """A function that computes the loss, and ends the run by one that isn't finite. Waits for the device each time."""
    name = type(module).__name__

    def compute_finite_loss(batch: Any, batch_idx: int) -> Tensor | None:
        loss = compute_loss(batch, batch_idx)
        if loss is not None and not _is_finite(loss):
            raise NonFiniteLossError(
                f"{name}.training_step returned a loss of {loss.item()} for batch {batch_idx} of epoch "
                f"{progress.epoch}, after {progress.global_step} optimizer steps, and terminate_on_nan=True. With "
                "automatic optimization nothing was learned from that batch: weights are those of the step before. "
                "detect_anomaly=True finds the operation whose gradient is NaN.",
                epoch=progress.epoch,
                batch_idx=batch_idx,
                global_step=progress.global_step,
            )
        return loss

    return compute_finite_loss


def _is_finite(loss: Tensor) -> bool:
    return bool(torch.isfinite(loss.detach()).all())
