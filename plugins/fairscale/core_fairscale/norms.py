"""Clipping by a norm of gradients of which each rank has a part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from core import GradientClipping, Strategy


def clip(strategy: Strategy, optimizer: Optimizer, clipping: GradientClipping) -> Tensor:
    """All ranks. Clip the gradients that this rank has, by the norm of all of them.

    Returns:
        That norm, before clipping, a scalar tensor.

    Raises:
        RuntimeError: it isn't finite, with `error_if_nonfinite`.
    """
    parameters = [own for group in optimizer.param_groups for own in group["params"]]
    norm = _norm_of_all(strategy, parameters, clipping.norm_type)
    if clipping.error_if_nonfinite and not norm.isfinite():
        raise RuntimeError(
            f"The norm of the gradients is {norm.item()}, and error_if_nonfinite=True."
        )
    torch.nn.utils.clip_grads_with_norm_(parameters, clipping.value, norm)
    return norm


def _norm_of_all(strategy: Strategy, parameters: list[Tensor], norm_type: float) -> Tensor:
    gradients = [own.grad for own in parameters if own.grad is not None]
    # A rank that has nothing has a norm too, of the dtype of the others'.
    norm = torch.nn.utils.get_total_norm(gradients or [torch.zeros_like(parameters[0])], norm_type)
    if norm_type == float("inf"):
        return strategy.reduce(norm, reduce_op="max")
    total: Tensor = strategy.reduce(norm**norm_type, reduce_op="sum") ** (1 / norm_type)
    return total
