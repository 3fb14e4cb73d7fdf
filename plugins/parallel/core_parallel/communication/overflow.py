"""Overflows of scaled losses, on which all ranks agree: where one rank has found one, none
steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from core_fsdp.gradients import parameters_of
from core_parallel.mesh.placements import own_part

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


def agree(scaler: Any) -> None:
    """All ranks; idempotent. Make torch's GradScaler ask all ranks for overflows, and unscale parts
    of tensors.
    """
    # the method that torch's own ShardedGradScaler overrides
    vars(scaler)["_unscale_grads_"] = _unscale


def _unscale(
    optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
) -> dict[torch.device, Tensor]:
    """All ranks. Divide gradients by the scale, in place; by device, whether one of any rank isn't
    finite.
    """
    found = found_inf.clone()
    for parameter in parameters_of(optimizer):
        if parameter.grad is None:
            continue
        if parameter.grad.dtype == torch.float16 and not allow_fp16:
            raise ValueError("Attempting to unscale FP16 gradients.")
        torch._amp_foreach_non_finite_check_and_unscale_(
            [own_part(parameter.grad)], found, inv_scale
        )
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return {found.device: found}


def has_gradients(optimizer: Optimizer) -> bool:
    """True if one of its parameters has one."""
    return any(parameter.grad is not None for parameter in parameters_of(optimizer))


def stand_in(device: torch.device) -> Optimizer:
    """An optimizer with a gradient of zero, for a rank whose own has none, and which is asked for
    overflows as well.
    """
    parameter = nn.Parameter(torch.zeros(1, device=device))
    parameter.grad = torch.zeros_like(parameter)
    return torch.optim.SGD([parameter], lr=0.0)
