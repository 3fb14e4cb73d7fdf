"""Warnings and errors of a `fit` in which nothing is updated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract import ModuleError
from core_training.module.optimization import evaluates_loss
from core_training.settings.warn_at import warn_caller

if TYPE_CHECKING:
    from core_training.run import Run


class NoUpdateCheck:
    """Warns of batches without a loss, and refuses epochs without an update, if the module has
    trainable parameters.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._has_warned = run, False
        self._name = type(run.module).__name__
        self._step = f"{self._name}.training_step"
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Reset the counts for a new epoch."""
        progress = self._run.progress
        self._first_batch, self._steps_before = progress.batch, progress.global_step
        self._skipped: set[int] = set()

    def note_missing_loss(self) -> None:
        """Called for a batch without a loss. Warns of the first one, and checks that no other rank
        has a loss.

        Raises:
            ModuleError: the optimizer needs one, or other ranks have one.
        """
        progress, strategy = self._run.progress, self._run.strategy
        batch = f"batch {progress.batch} of epoch {progress.epoch}"
        self._skipped.add(progress.batch)
        for optimizer in filter(evaluates_loss, strategy.optimizers):
            raise ModuleError(
                f"{self._step} returned None for {batch}, and {type(optimizer).__name__} evaluates "
                "the loss inside of its step, so that it can't skip a batch. End it with `return "
                "loss`, or use another optimizer."
            )
        if not self._has_gradients():
            return
        if strategy.optimizers:
            self._warn(
                f"{self._step} returned None for {batch}: the batch is skipped, and nothing is "
                "learned from it. If that isn't meant, end it with `return loss`."
            )
        # At every batch of an accumulation window: what ranks exchange depends on all before it.
        others = strategy.absent_ranks(batch)
        if others:
            raise ModuleError(
                f"{self._step} returned None for {batch} on rank {strategy.global_rank}, and not "
                f"on {', '.join(f'rank {other}' for other in others)}: a rank with a loss waits "
                "for the gradients of all. Skip a batch on all ranks, or return a loss of zero "
                "with a graph, such as `0 * loss` of one that is finite. (A rank that comes later "
                "by a thirtieth of the strategy's timeout= counts as one with a loss.)"
            )

    def end_epoch(self, num_batches: int) -> None:
        """Called at the end of an epoch. Warns if no optimizer has stepped in manual optimization.

        Raises:
            ModuleError: none of them had a loss.
        """
        run, progress = self._run, self._run.progress
        if self._first_batch or not run.strategy.optimizers or not self._has_gradients():
            return
        if not getattr(run.module, "automatic_optimization", True):
            if progress.global_step == self._steps_before:
                self._warn(
                    f"No optimizer has updated parameters in the {num_batches} batches of epoch "
                    f"{progress.epoch}: {self._name} has automatic_optimization = False, so that "
                    "its training_step calls self.manual_backward(loss), and step() of what "
                    "self.optimizers() returns."
                )
        elif len(self._skipped) >= num_batches:
            raise ModuleError(
                f"{self._step} returned None for all {num_batches} batches of epoch "
                f"{progress.epoch}, so that nothing was learned. Expected a scalar tensor, or a "
                "dict with one under 'loss': end it with `return loss`; or set "
                "self.automatic_optimization = False and step the optimizers in it."
            )

    def _has_gradients(self) -> bool:
        return any(each.requires_grad for each in self._run.module.parameters())

    def _warn(self, message: str) -> None:
        """Warn once, on rank 0."""
        if self._run.strategy.is_global_zero and not self._has_warned:
            warn_caller(message)
        self._has_warned = True
