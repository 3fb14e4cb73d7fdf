"""The loss that a step by a schedule returns: backward of it finds the gradients computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core import ModuleError
from core_parallel.mesh.placements import own_part
from core_parallel.pipeline.backward_pass import add_to

if TYPE_CHECKING:
    from torch import Tensor, nn

    from core_parallel.pipeline.chain import Chain


class ScheduledLoss(torch.autograd.Function):
    """The loss of a batch whose gradients are there already: backward scales them, and adds them to
    earlier ones.
    """

    @staticmethod
    def forward(
        ctx: Any,
        loss: Tensor,
        anchor: Tensor,
        gradients: dict[nn.Parameter, Tensor],
        factor: Tensor,
        chain: Chain,
    ) -> Tensor:
        """The loss."""
        ctx.gradients, ctx.factor, ctx.chain = gradients, factor, chain
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> Any:
        """Set the gradients of this rank's parameters."""
        if ctx.gradients is None:
            raise ModuleError(
                "backward was called twice on one loss of a pipeline's schedule, which has "
                "computed the gradients once. Add up the losses in training_step, and call it once."
            )
        scale = incoming[0] * ctx.factor.to(incoming[0])
        if ctx.chain.peers is not None:
            scale = ctx.chain.peers.common_factor(scale, is_known=bool(ctx.factor))
        for gradient in ctx.gradients.values():
            own_part(gradient).mul_(scale.to(gradient.dtype))
        add_to(ctx.gradients)
        ctx.chain.shards.reduce(scale)
        ctx.gradients = None
        return None, None, None, None, None
