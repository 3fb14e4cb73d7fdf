"""Steps of optimizers whose products need whole matrices, where each rank has a part of each.

torch's Muon runs on shards too, and comes to other weights than one device: it rounds the terms of
its products to bfloat16 on each rank before they are added up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from core.checkpoint import gather_whole
from core_fsdp.shards import fill_from
from core_fsdp.state import placed_state

if TYPE_CHECKING:
    from torch.optim import Optimizer


def gather_in_steps(optimizer: Optimizer) -> None:
    """All ranks. Step an optimizer on whole matrices: one is gathered at a time, and stepped on all
    ranks.

    A hook before the step makes it, so that schedulers and scalers see the step that they know.
    What is in shards then has no gradient for the step itself, which a hook after it puts back.
    """
    taken: list[tuple[DTensor, Tensor]] = []

    def step_shards(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # the first one is the optimizer
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is not None:  # makes the gradients
            with torch.enable_grad():
                loss = closure()
            args = (optimizer, lambda: loss)
            kwargs = {}
        for group in optimizer.param_groups:
            for shard in group["params"]:
                if isinstance(shard, DTensor) and shard.grad is not None:
                    _step_whole(optimizer, group, shard)
                    taken.append((shard, shard.grad))
                    shard.grad = None
        return args, kwargs

    def put_back(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for shard, gradient in taken:
            shard.grad = gradient
        taken.clear()

    optimizer.register_step_pre_hook(step_shards)
    optimizer.register_step_post_hook(put_back)


@torch.no_grad()
def _step_whole(optimizer: Any, group: dict[str, Any], shard: DTensor) -> None:
    """All ranks. The optimizer's own step, with one matrix and the state that it keeps for it."""
    matrix = nn.Parameter(gather_whole(shard), requires_grad=shard.requires_grad)
    matrix.grad = gather_whole(shard.grad)
    kept = {key: _whole(value) for key, value in optimizer.state.pop(shard, {}).items()}
    groups = optimizer.param_groups
    step = type(optimizer).step
    optimizer.param_groups = [{**group, "params": [matrix]}]
    optimizer.state[matrix] = kept
    try:
        getattr(step, "__wrapped__", step)(optimizer)  # without the hooks, these among them
    finally:
        optimizer.param_groups = groups
        kept = optimizer.state.pop(matrix)
        optimizer.state[shard] = {key: placed_state(value, shard) for key, value in kept.items()}
    fill_from(matrix, shard)


def _whole(value: Any) -> Any:
    return gather_whole(value) if isinstance(value, DTensor) else value
