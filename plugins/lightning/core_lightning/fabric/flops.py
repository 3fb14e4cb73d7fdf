"""Floating-point operations of a step."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


def measure_flops(
    model: nn.Module,
    forward_fn: Callable[[], Tensor],
    loss_fn: Callable[[Tensor], Tensor] | None = None,
) -> int:
    """FLOPs of a forward pass, and of backward if there is a loss. A model on `meta` will do."""
    with FlopCounterMode(display=False) as counter:
        output = forward_fn()
        if loss_fn is not None:
            loss_fn(output).backward()
    return int(counter.get_total_flops())
