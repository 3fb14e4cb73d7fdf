"""A training step with several optimizers: one backward, after which each of them steps once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core_training.loops.joint_optimizer import JointOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.optim import Optimizer

    from core.contract import TrainingStep


def join_optimizers(step: TrainingStep) -> None:
    """Join the optimizers of a step to one; hooks get each of them, one after the other."""
    optimizers = step.optimizers
    step.optimizers = [JointOptimizer(optimizers)]
    step.before_optimizer_step = _for_each(optimizers, step.before_optimizer_step)
    step.before_zero_grad = _for_each(optimizers, step.before_zero_grad)
    step.clip_gradients = _for_each(optimizers, step.clip_gradients)
    step.zero_grad = _for_each(optimizers, step.zero_grad)


def _for_each(
    optimizers: Sequence[Optimizer], call: Callable[[Optimizer], None] | None
) -> Callable[[Optimizer], None] | None:
    if call is None:
        return None

    def call_for_each(joint: Optimizer) -> None:
        for optimizer in optimizers:
            call(optimizer)

    return call_for_each
