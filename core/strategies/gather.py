"""An all-gather through which gradients flow back to the ranks that they belong to."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class GatherWithGradients(torch.autograd.Function):
    """Stacks a tensor of shape (...) from all ranks to (world_size, ...); backward sums what all ranks want of it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
        """All ranks, with the same shape."""
        ctx.group = group
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, tensor, group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """All ranks."""
        # A copy: autograd hands the same tensor to other branches (`gathered + bias`), and all_reduce works in place.
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=ctx.group)
        return gradient[dist.get_rank(ctx.group)], None
