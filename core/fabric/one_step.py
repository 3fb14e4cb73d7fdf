"""One training step of a user's own loop, and the end of a run by a loss that is NaN or
infinite.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from core.contract import Capability, ModuleError, NonFiniteLossError
from core.fabric.state import unwrap_module

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from core.contract import ComputesLoss, Strategy
    from core.fabric.fabric import Fabric


def run_step(
    fabric: Fabric, model: nn.Module, batch: Any, loss_fn: Callable[[Any, Any], Any]
) -> Tensor:
    """All ranks. See `Fabric.step`."""
    step = partial(loss_fn, model)
    strategy = fabric.strategy
    if Capability.COMPUTES_LOSS in strategy.capabilities:
        output = cast("ComputesLoss", strategy).compute_loss(step, batch, unwrap_module(model))
    else:
        output = step(batch)
    loss: Any = output
    weight = None
    if isinstance(output, dict):
        loss, weight = output.get("loss"), output.get("weight")
    if not (callable(getattr(loss, "backward", None)) and loss.numel() == 1 and loss.requires_grad):
        raise ModuleError(
            f"loss_fn returned {output!r:.60}; expected a scalar tensor with a graph, or a dict "
            "with one under 'loss' and perhaps the number of items that it is a mean over under "
            "'weight'."
        )
    fabric.backward(loss, model=model, weight=weight)
    return cast("Tensor", loss.detach())


def refuse_non_finite(loss: torch.Tensor, strategy: Strategy) -> None:
    """This rank. Wait for a loss of any shape, and end the run if it isn't finite.

    Raises:
        NonFiniteLossError: it is NaN or infinite.
    """
    if bool(torch.isfinite(loss.detach()).all()):
        return
    value: object = loss
    if loss.numel() == 1:
        value = loss.item()
    where = ""
    if strategy.world_size > 1:
        where = f" on rank {strategy.global_rank}"
    raise NonFiniteLossError(
        f"fabric.backward was given a loss of {value}{where}, and terminate_on_nan=True. No "
        "gradients have come of it: weights are those of the step before. "
        "torch.autograd.set_detect_anomaly(True) finds the operation whose gradient is NaN."
    )
