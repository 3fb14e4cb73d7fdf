"""Averages of the weights, with Lightning's arguments and moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from core import Trainer
from core_training.averaging import WeightAveraging as CoreWeightAveraging

Average = Callable[[Tensor, Tensor, Any], Tensor]


class WeightAveraging(CoreWeightAveraging):
    """An average that `should_update` paces. Validation runs of `fit` use it, and the module gets
    it at the end.

    In a checkpoint the module's weights are the trained ones, and the average has a section of its
    own: see `core.callbacks.WeightAveraging`.

    Args:
        device: where the average is kept; None is the model's.
        use_buffers: average buffers too.
        avg_fn: the new average of a weight, from the average, the weight and the number of updates.
        multi_avg_fn: the same for lists of weights, in place.
    """

    def __init__(
        self,
        device: torch.device | str | int | None = None,
        use_buffers: bool = True,
        *,
        avg_fn: Average | None = None,
        multi_avg_fn: Callable[..., None] | None = None,
    ) -> None:
        if avg_fn is not None:
            multi_avg_fn = _one_by_one(avg_fn)
        if isinstance(device, int):
            device = torch.device(device)
        super().__init__(
            multi_avg_fn, use_buffers=use_buffers, device=device, evaluates_in_fit=True
        )
        self.reset_for_fit()

    def reset_for_fit(self) -> None:
        """Nothing was averaged yet."""
        self._latest_update_step, self._latest_update_epoch = 0, -1

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """True after each optimizer step. Meant to be overridden.

        Args:
            step_idx: the last optimizer step, from 0; None at an epoch's end.
            epoch_idx: the last epoch, from 0; None after a step.
        """
        return step_idx is not None

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Update the average after an optimizer step."""
        self.update_after_step(trainer.global_step)

    def update_after_step(self, step: int) -> None:
        """Update the average, if the newest optimizer step asks for it and hasn't got it."""
        if step > self._latest_update_step and self.should_update(step_idx=step - 1):
            self.update()
            self._latest_update_step = step

    def on_train_epoch_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Update the average at an epoch's end."""
        epoch = trainer.current_epoch
        if epoch > self._latest_update_epoch and self.should_update(epoch_idx=epoch):
            self.update()
            self._latest_update_epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """The step of the last update."""
        return {"latest_update_step": self._latest_update_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._latest_update_step = state.get("latest_update_step", 0)


class EMAWeightAveraging(WeightAveraging):
    """The exponential moving average: `average = decay * average + (1 - decay) * weights`.

    Args:
        decay: weight of the past.
        update_every_n_steps: update in every so many optimizer steps, the first among them.
        update_starting_at_step: the first optimizer step, from 0, that updates; None for the first
            of all.
        update_starting_at_epoch: update at the ends of epochs too, from this one on, counted from
            0.
    """

    def __init__(
        self,
        device: torch.device | str | int | None = None,
        use_buffers: bool = True,
        decay: float = 0.999,
        update_every_n_steps: int = 1,
        update_starting_at_step: int | None = None,
        update_starting_at_epoch: int | None = None,
    ) -> None:
        from torch.optim.swa_utils import get_ema_avg_fn

        super().__init__(device, use_buffers, avg_fn=get_ema_avg_fn(decay))
        self.update_every_n_steps = update_every_n_steps
        self.update_starting_at_step = update_starting_at_step
        self.update_starting_at_epoch = update_starting_at_epoch

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """True in the steps, and at the ends of the epochs, that the arguments name."""
        if step_idx is not None and step_idx >= (self.update_starting_at_step or 0):
            return self.update_every_n_steps > 0 and step_idx % self.update_every_n_steps == 0
        starts = self.update_starting_at_epoch
        return epoch_idx is not None and starts is not None and epoch_idx >= starts


def _one_by_one(average: Average) -> Callable[[Sequence[Tensor], Sequence[Tensor], Any], None]:
    """The function for lists of weights that one for single weights makes."""

    def update(averages: Sequence[Tensor], weights: Sequence[Tensor], num_averaged: Any) -> None:
        for old, weight in zip(averages, weights, strict=True):
            old.copy_(average(old, weight, num_averaged))

    return update
