"""Clipping gradients that lie in shards, perhaps over different axes of the mesh."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm

from core_fsdp.left_out import groups_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn
    from torch.distributed.fsdp import FSDPModule
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from core import GradientClipping


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """The optimizer's parameters, group after group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def add_up_sums(module: nn.Module) -> list[RemovableHandle]:
    """Lay gradients out as their parameters are, after each backward.

    Those of a norm that sees a part of the sequence are terms of a sum: torch 2.9's optimizers take
    the rank's own term for the whole, and later ones add up in each of their operations.

    Returns:
        The hooks.
    """
    cut: list[Any] = [
        one for one in module.parameters() if isinstance(one, DTensor) and one.requires_grad
    ]
    return [parameter.register_post_accumulate_grad_hook(add_up) for parameter in cut]


def clear_whole_ones(optimizer: Optimizer, units: Sequence[FSDPModule]) -> None:
    """Make `zero_grad` forget whole gradients too, of a window without a step: torch holds them
    apart from shards'.
    """
    zero_grad = optimizer.zero_grad

    def clear(set_to_none: bool = True) -> None:
        zero_grad(set_to_none)
        own = set(parameters_of(optimizer))
        for one in (
            one
            for unit in units
            for group in groups_of(unit._get_fsdp_state())
            for one in group.fsdp_params
        ):
            if one.sharded_param in own and hasattr(one, "_unsharded_param"):
                one.unsharded_param.grad = None
                if one.unsharded_accumulated_grad is not None:  # torch 2.13 holds it apart
                    one.unsharded_accumulated_grad = None

    vars(optimizer)["zero_grad"] = clear


def add_up(parameter: Tensor) -> None:
    """All ranks. Lay the gradient of a DTensor out as it is."""
    gradient = parameter.grad
    assert isinstance(parameter, DTensor), "others have no placements"
    if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(placements=parameter.placements)


def clip_by_norm(parameters: Iterable[Tensor], clipping: GradientClipping) -> Tensor:
    """All ranks. Scale gradients in place so that their norm over all shards is at most
    `clipping.value`.

    Returns:
        The norm before, a scalar tensor, the same on all ranks.
    """
    placed = _by_mesh(parameters)
    # One tensor operation takes tensors of one mesh only; a replicated gradient counts once.
    norms = [_norm_of(group, clipping.norm_type) for group in placed]
    if not norms:
        return torch.tensor(0.0)
    norms = [norm.to(norms[0].device) for norm in norms]
    total = get_total_norm(norms, clipping.norm_type, clipping.error_if_nonfinite)
    for group in placed:
        clip_grads_with_norm_(group, clipping.value, total)
    return total


def clip_by_value(parameters: Iterable[Tensor], value: float) -> None:
    """All ranks. Bound each element of the gradients, in place; shards need no communication for
    that.
    """
    for group in _by_mesh(parameters):
        clip_grad_value_(group, value)


def _norm_of(parameters: list[Tensor], norm_type: float) -> Tensor:
    norm = get_total_norm(
        [parameter.grad for parameter in parameters if parameter.grad is not None], norm_type
    )
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _by_mesh(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    groups: dict[object, list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None:
            gradient = parameter.grad
            groups[gradient.device_mesh if isinstance(gradient, DTensor) else None].append(
                parameter
            )
    return list(groups.values())
