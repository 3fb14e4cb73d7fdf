"""A training step with several optimizers: one backward, after which they step together, as one
would that holds all of their parameters.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.contract import TrainingStep


class JointOptimizer(Optimizer):
    """Several optimizers as one: they are unscaled, clipped and stepped together, or not at all.

    For a step of automatic optimization. The optimizers themselves stay those that checkpoints,
    schedulers and `strategy.optimizers` have; this one has no state.

    Attributes:
        joined: the optimizers, in the order of their steps.
    """

    def __init__(self, joined: Sequence[Optimizer]) -> None:
        self.joined = list(joined)
        super().__init__(self.param_groups, {})

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all, those that are added later too."""
        return [group for optimizer in self.joined for group in optimizer.param_groups]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        pass

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Do nothing, as the groups are those of the joined optimizers."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step each, after the closure, if there is one, has computed the gradients of all."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self.joined:
            optimizer.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all."""
        for optimizer in self.joined:
            optimizer.zero_grad(set_to_none)


def join_optimizers(step: TrainingStep) -> None:
    """Join the optimizers of a step to one; hooks get each of them, one after the other."""
    optimizers = step.optimizers
    step.optimizers = [JointOptimizer(optimizers)]
    for name in ("before_optimizer_step", "before_zero_grad", "clip_gradients", "zero_grad"):
        hook = getattr(step, name)
        if hook is not None:
            setattr(step, name, partial(_for_each, optimizers, hook))


def _for_each(
    optimizers: Sequence[Optimizer], call: Callable[[Optimizer], None], joint: Optimizer
) -> None:
    for optimizer in optimizers:
        call(optimizer)
