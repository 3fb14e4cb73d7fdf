"""Faults that tests put in, in place of what is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.distributed.tensor.parallel import ColwiseParallel

from core.session.divergence import Alike
from core_parallel.pipeline import chain
from core_parallel.pipeline.scheduled_step import ScheduledStep

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor

_cut, _loss, _prepare = chain._cut, ScheduledStep._loss, ColwiseParallel._prepare_input_fn


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


class _Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] / 2


def halved_input_gradient(layouts: Any, desired: Any, module: Any, inputs: Any, mesh: Any) -> Any:
    """`ColwiseParallel._prepare_input_fn`, with the average of two ranks' gradients in place of their sum."""
    return _prepare(layouts, desired, module, (_Half.apply(inputs[0]), *inputs[1:]), mesh)


def compares_no_ranks() -> AbstractContextManager[Any]:
    """A context in which ranks that part train on, so that numbers show the fault."""
    return mock.patch.object(Alike, "stepped", return_value=None)
