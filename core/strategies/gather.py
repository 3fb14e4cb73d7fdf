"""An all-gather through which gradients flow back to the ranks that they belong to."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

_GATHERS_INTO_ONE = ("gloo", "nccl", "xccl")
"""Backends that gather without a copy of each rank's part."""
# torch 2.13 has another name for it, and warns of the old one.
_gather_into_one = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class GatherWithGradients(torch.autograd.Function):
    """Stacks a tensor of shape (...) from all ranks to (world_size, ...); backward sums what all
    ranks want of it.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
        """All ranks, with the same shape."""
        ctx.group = group
        size = dist.get_world_size(group)
        if dist.get_backend(group) not in _GATHERS_INTO_ONE:
            parts = [torch.empty_like(tensor) for _ in range(size)]
            dist.all_gather(parts, tensor, group=group)
            return torch.stack(parts)
        stacked = tensor.new_empty((size, *tensor.shape))
        _gather_into_one(stacked.view(-1), tensor.reshape(-1), group=group)
        return stacked

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """All ranks."""
        # A copy: autograd hands the same tensor to other branches (`gathered + bias`), and
        # all_reduce works in place.
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=ctx.group)
        return gradient[dist.get_rank(ctx.group)], None
