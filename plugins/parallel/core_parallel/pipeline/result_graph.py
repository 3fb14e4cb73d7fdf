"""The ends of a graph that goes over all ranks of a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from core import ModuleError
from core_fsdp.forward import refuse_graph
from core_parallel.pipeline.forward_pass import can_learn

if TYPE_CHECKING:
    from core_parallel.pipeline.chain import Chain
    from core_parallel.pipeline.forward_pass import Pass


class Answer(torch.autograd.Function):
    """The result of the model, as the end of a graph that goes over all ranks of the pipeline."""

    @staticmethod
    def forward(
        ctx: Any, chain: Chain, made: Pass, num_outputs: int, anchor: Tensor, *tensors: Tensor
    ) -> Any:
        """The first `num_outputs` tensors; the others are the arguments that want gradients."""
        ctx.chain, ctx.made, ctx.num_outputs = chain, made, num_outputs
        outputs = [one.view_as(one) for one in tensors[:num_outputs]]
        ctx.mark_non_differentiable(*(one for one in outputs if not can_learn(one)))
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """All ranks of the pipeline."""
        if not ctx.made.computed:
            raise ModuleError(
                "backward was called twice on one result of the model, whose graph over the ranks "
                "of a pipeline is gone by then. Add up the losses, and call it once."
            )
        refuse_graph(
            "Over the ranks of a pipeline there is no graph of it. Compute it in a part of the "
            "model, or leave pipeline out."
        )
        # the anchor's own node, which `torch.autograd.grad` of something else leaves out
        accumulates = torch._C._will_engine_execute_node(ctx.next_functions[0][0])
        found = ctx.chain.backward(ctx.made, gradients, accumulates=accumulates)
        return (None, None, None, None, *([None] * ctx.num_outputs), *found)


class Given(torch.autograd.Function):
    """The arguments of the model, as its forward and the stages have them.

    What a stage gives to their gradients is added up over all ranks, and comes by `Answer`.
    """

    @staticmethod
    def forward(ctx: Any, made: Pass, *tensors: Tensor) -> Any:
        """The tensors."""
        ctx.made = made
        ctx.set_materialize_grads(False)
        return tuple(one.view_as(one) for one in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Their gradients, where it is the user's backward."""
        if ctx.made.runs_back:
            return None, *[None for _ in gradients]
        return None, *gradients
