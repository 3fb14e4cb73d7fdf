"""The end of a run by a loss that is NaN or infinite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from core.contract import NonFiniteLossError

if TYPE_CHECKING:
    from core.contract import Strategy


def refuse_non_finite(loss: torch.Tensor, strategy: Strategy) -> None:
    """This rank. Wait for a loss of any shape, and end the run if it isn't finite.

    Raises:
        NonFiniteLossError: it is NaN or infinite.
    """
    if bool(torch.isfinite(loss.detach()).all()):
        return
    value = loss.item() if loss.numel() == 1 else loss
    where = f" on rank {strategy.global_rank}" if strategy.world_size > 1 else ""
    raise NonFiniteLossError(
        f"fabric.backward was given a loss of {value}{where}, and terminate_on_nan=True. No gradients have come of it: "
        "weights are those of the step before. torch.autograd.set_detect_anomaly(True) finds the operation whose "
        "gradient is NaN."
    )
