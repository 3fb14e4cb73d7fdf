"""Warnings of `fit`: nothing was updated, or a weight is ignored."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING

import torch

from core.contract import ModuleError
from core_training.module.optimization import evaluates_loss
from core_training.settings.warn_at import warn_at, warn_caller

if TYPE_CHECKING:
    from core_training.run import Run


class NoUpdateCheck:
    """Warns of batches without a loss, and refuses epochs without an update, if the module has
    trainable parameters.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._name = run, type(run.module).__name__
        self._is_manual = not getattr(run.module, "automatic_optimization", True)
        self._has_warned = False
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Reset the counts for a new epoch."""
        progress = self._run.progress
        self._first_batch, self._steps_before, self._skipped = (
            progress.batch,
            progress.global_step,
            set[int](),
        )

    def note_missing_loss(self) -> None:
        """Called for a batch without a loss. Warns of the first one, and checks that no other rank
        has a loss.

        Raises:
            ModuleError: the optimizer needs one, or other ranks have one.
        """
        progress, optimizers = self._run.progress, self._run.strategy.optimizers
        if owner := next(
            (type(each).__name__ for each in optimizers if evaluates_loss(each)), None
        ):
            raise ModuleError(
                f"{self._name}.training_step returned None for batch {progress.batch} of epoch "
                f"{progress.epoch}, and {owner} evaluates the loss inside of its step, so that it "
                "can't skip a batch. End it with `return loss`, or use another optimizer."
            )
        self._skipped.add(progress.batch)
        if self._learns():
            self._warn(
                f"{self._name}.training_step returned None for batch {progress.batch} of epoch "
                f"{progress.epoch}: the batch is skipped, and nothing is learned from it. If that "
                "isn't meant, end it with `return loss`."
            )
        # At every batch of an accumulation window: what ranks exchange depends on all before it.
        if self._has_gradients() and (others := self._run.strategy.absent_ranks(self._batch)):
            raise ModuleError(self._missed_by(others))

    def end_epoch(self, num_batches: int) -> None:
        """Called at the end of an epoch. Warns if no optimizer has stepped in manual optimization.

        Raises:
            ModuleError: none of them had a loss.
        """
        progress = self._run.progress
        if self._first_batch or not self._learns():
            return
        if self._is_manual and progress.global_step == self._steps_before:
            self._warn(
                f"No optimizer has updated parameters in the {num_batches} batches of epoch "
                f"{progress.epoch}: {self._name} has automatic_optimization = False, so that its "
                "training_step calls self.manual_backward(loss), and step() of what "
                "self.optimizers() returns."
            )
        elif not self._is_manual and len(self._skipped) >= num_batches:
            raise ModuleError(
                f"{self._name}.training_step returned None for all {num_batches} batches of epoch "
                f"{progress.epoch}, so that nothing was learned. Expected a scalar tensor, or a "
                "dict with one under 'loss': end it with `return loss`; or set "
                "self.automatic_optimization = False and step the optimizers in it."
            )

    @property
    def _batch(self) -> str:
        return f"batch {self._run.progress.batch} of epoch {self._run.progress.epoch}"

    def _missed_by(self, others: list[int]) -> str:
        rank = self._run.strategy.global_rank
        return (
            f"{self._name}.training_step returned None for {self._batch} on rank {rank}, and not "
            f"on {', '.join(f'rank {other}' for other in others)}: a rank with a loss waits for "
            "the gradients of all. Skip a batch on all ranks, or return a loss of zero with a "
            "graph, such as `0 * loss` of one that is finite. (A rank that comes later by a "
            "thirtieth of the strategy's timeout= counts as one with a loss.)"
        )

    def _learns(self) -> bool:
        return bool(self._run.strategy.optimizers) and self._has_gradients()

    def _has_gradients(self) -> bool:
        return any(each.requires_grad for each in self._run.module.parameters())

    def _warn(self, message: str) -> None:
        """Warn once, on rank 0."""
        if self._run.strategy.is_global_zero and not self._has_warned:
            warn_caller(message)
        self._has_warned = True


def warn_of_weights(run: Run, weights: object) -> None:
    """Warn, at an epoch's first batch, if a dict of a training step has one number under
    `"weights"`.
    """
    is_number = isinstance(weights, Real) or (
        isinstance(weights, torch.Tensor) and weights.numel() == 1
    )
    if is_number and run.progress.batch == 0 and run.strategy.is_global_zero:
        warn_at(
            getattr(run.module, "training_step", None),
            f"{type(run.module).__name__}.training_step returned a number under 'weights', which "
            "is ignored. If it is the number of items that the loss is a mean over, return it "
            "under 'weight'.",
        )
