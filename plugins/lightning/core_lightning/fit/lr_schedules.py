"""The moments at which Lightning steps learning-rate schedulers."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from core import Callback, Capability, ModuleError, Trainer, rank_zero_warn


class LRSchedules(Callback):
    """Steps schedulers in the place of core's loop, which has other moments.

    By step: before `on_train_batch_end` of a batch that ends an accumulation window, if its number
    in the epoch is a multiple of the frequency. By epoch: before that hook of the epoch's last
    batch. Those that take a metric follow when the validation after the batch, or the epoch's last
    hooks, are through, with the value that is there.

    `global_step` counts these batches, whether their step has updated anything or not.
    """

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Step what a checkpoint has left to do."""
        owns = Capability.OWNS_SCHEDULER in trainer.strategy.capabilities
        self._steps = getattr(module, "automatic_optimization", True) and not owns
        self._epoch = -1
        self._step_waiting(trainer, module)

    def on_train_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Step those that have waited for the end of the epoch before, as at the end of
        training.
        """
        self._step_waiting(trainer, module)

    on_train_end = on_train_epoch_start

    def on_train_batch_start(
        self, trainer: Trainer, module: nn.Module, batch: Any, batch_idx: int
    ) -> None:
        """Step those that have waited for a validation."""
        self._step_waiting(trainer, module)
        self._steps_before = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Step those that are due."""
        step, count = trainer.running_step, trainer.progress.batch
        if step is None or step.ends_window:
            counts = self._steps and getattr(step and step.step_optimizer, "counts", True)
            if counts and trainer.global_step == self._steps_before:  # the batch was skipped
                trainer.progress.global_step += 1
            self._step(trainer, module, "step", count)
        if count >= trainer.num_training_batches:
            self._end_epoch(trainer, module)

    def on_train_epoch_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Step those of an epoch whose last batch nobody knew; not of one that a stop or a limit
        has cut.
        """
        limit = trainer.max_steps
        if not trainer.should_stop and not 0 <= limit <= trainer.global_step:
            self._end_epoch(trainer, module)

    def _end_epoch(self, trainer: Trainer, module: nn.Module) -> None:
        if self._epoch != trainer.current_epoch:
            self._epoch = trainer.current_epoch
            self._step(trainer, module, "epoch", trainer.current_epoch + 1)

    def _step(self, trainer: Trainer, module: nn.Module, interval: str, count: int) -> None:
        if not self._steps:
            return
        for item in trainer.strategy.lr_schedulers:
            if item.interval == interval and count % item.frequency == 0:
                if _takes_metric(item):
                    item.is_waiting = True
                else:
                    _call(module, item.scheduler, None)

    def _step_waiting(self, trainer: Trainer, module: nn.Module) -> None:
        if not self._steps:
            return
        for item in trainer.strategy.lr_schedulers:
            if not item.is_waiting:
                continue
            item.is_waiting = False
            values = trainer.callback_metrics
            value = trainer.strategy.broadcast(values.get(item.monitor))
            if value is not None:
                _call(module, item.scheduler, value)
                continue
            said = (
                f"A scheduler monitors {item.monitor!r}, which was not logged; logged were "
                f"{sorted(values)}. "
            )
            if item.strict:
                raise ModuleError(
                    f"{said}Call self.log({item.monitor!r}, ...), or give the scheduler 'strict': "
                    "False."
                )
            rank_zero_warn(f"{said}Its step is left out.")


def _takes_metric(item: Any) -> bool:
    return item.reduce_on_plateau or isinstance(item.scheduler, ReduceLROnPlateau)


def _call(module: Any, scheduler: Any, metric: Any) -> None:
    if (hook := getattr(module, "lr_scheduler_step", None)) is not None:
        hook(scheduler, metric)
    elif metric is None:
        scheduler.step()
    else:
        scheduler.step(metric)
