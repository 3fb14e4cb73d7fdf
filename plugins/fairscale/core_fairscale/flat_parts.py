"""The flat part of a parameter that a rank has under FairScale's FSDP, and the whole tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core import Strategy

_ATTRIBUTES = (
    "_is_sharded",
    "_orig_size",
    "_fp32_shard",
    "_fp16_shard",
    "_full_param_padded",
    "_saved_grad_shard",
)


def own_part(whole: Tensor, parameter: Any, strategy: Strategy) -> Tensor:
    """This rank's part of a tensor of the parameter's whole shape, a copy: flat, padded with zeros;
    of one rank all.
    """
    if strategy.world_size == 1:
        return whole.detach().clone()
    size = parameter._fp32_shard.numel()
    flat = whole.detach().flatten()
    padded = torch.nn.functional.pad(flat, [0, size * strategy.world_size - flat.numel()])
    return padded[strategy.global_rank * size :][:size].clone()


def gather(part: Tensor, parameter: Any, strategy: Strategy) -> Tensor:
    """All ranks. The whole tensor, of the parameter's whole shape, of which each rank has a flat
    part.
    """
    shape = parameter._orig_size
    return strategy.all_gather(part.detach().flatten()).flatten()[: shape.numel()].view(shape)


def convert_entries(
    state: Mapping[Any, Mapping[str, Any]],
    parameters: Mapping[Any, Tensor],
    convert: Callable[[Tensor, Tensor], Any],
) -> dict[Any, dict[str, Any]]:
    """An optimizer's state, each tensor with dimensions converted; torch keeps step counts as
    tensors without.

    Args:
        state: by names or positions.
        parameters: by the same.
        convert: called with a tensor and its parameter.
    """
    return {
        key: {
            name: convert(value, parameters[key])
            if isinstance(value, Tensor) and value.ndim
            else value
            for name, value in entry.items()
        }
        for key, entry in state.items()
    }


def forget(parameter: Any, whole: Tensor) -> None:
    """Give a parameter its whole value back, and take away all that FairScale keeps on it."""
    if hook := vars(parameter).pop("_shard_bwd_hook", None):
        hook[1].remove()
    for name in _ATTRIBUTES:
        vars(parameter).pop(name, None)
    parameter.data, parameter.grad = whole, None
