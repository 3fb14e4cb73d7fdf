"""Faults of a pipeline that tests put in, in place of what is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core_parallel import chain
from core_parallel.scheduled import ScheduledStep

if TYPE_CHECKING:
    from torch import Tensor

_cut, _loss = chain._cut, ScheduledStep._loss


def first_gradient_twice(gradient: Tensor | None, sizes: Any) -> Any:
    """`chain._cut`, with the first microbatch's gradient twice."""
    first, *others = _cut(gradient, sizes)
    return [first if first is None else 2 * first, *others]


def first_loss_twice(self: ScheduledStep, runner: Any, output: Any, target: Tensor) -> Tensor:
    """`ScheduledStep._loss`, with the first microbatch's loss twice."""
    loss = _loss(self, runner, output, target)
    return loss if int(target) else 2 * loss


def first_weight_twice(self: ScheduledStep, runner: Any, output: Any, target: Tensor) -> Tensor:
    """`ScheduledStep._loss`, with the first microbatch's weight twice."""
    loss = _loss(self, runner, output, target)
    runner.run.weights[-1] *= 1 if int(target) else 2
    return loss
