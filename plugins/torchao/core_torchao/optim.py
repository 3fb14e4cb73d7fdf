"""AdamW for weights in bfloat16, of which rounding to the nearest loses the small updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torchao.optim import _AdamW

if TYPE_CHECKING:
    from collections.abc import Callable


class AdamWBF16(_AdamW):  # type: ignore[misc]  # torchao has no types
    """torchao's AdamW, whose updates of weights in bfloat16 are rounded up or down at random, right
    on average.

    It computes in float32, and its states have the weights' format. The random numbers follow from
    the step alone: replicas round alike, whatever else their ranks have drawn, a resumed run goes
    on as if it hadn't stopped, and dropout draws what it would have drawn.

    Args:
        params: parameters or groups of them; those that aren't in bfloat16 are rounded to the
            nearest.
        lr: learning rate, of which a tensor is made.
        options: `betas`, `eps`, `weight_decay` and `amsgrad`, as torch's AdamW has them.
    """

    def __init__(self, params: Any, lr: float = 1e-3, **options: Any) -> None:
        super().__init__(params, lr, **options, bf16_stochastic_round=True)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """All ranks. Update the parameters. Returns the closure's loss, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        held = [
            one for group in self.param_groups for one in group["params"] if one.grad is not None
        ]
        devices = sorted({one.device.index for one in held if one.device.type == "cuda"})
        with torch.random.fork_rng(devices):
            # Of the step that is furthest: parameters may have joined later.
            torch.manual_seed(
                int(max((state["step"] for state in self.state.values() if state), default=0))
            )
            super().step()
        return loss
