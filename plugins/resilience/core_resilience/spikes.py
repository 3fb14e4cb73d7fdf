"""The judgement of an accumulation window, by the losses and the gradients of all ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from core_resilience.gradient_norms import join_norms, local_norms

if TYPE_CHECKING:
    from torch import Tensor

    from core import Strategy
    from core_resilience.recent_range import RecentRange


def losses_and_norm(strategy: Strategy, of_window: list[Tensor]) -> tuple[dict[int, float], float]:
    """All ranks. The mean loss of each rank that has any, and the norm of the gradients of all.

    Args:
        strategy: with the optimizers of these gradients.
        of_window: the losses of this rank in the accumulation window.
    """
    device = strategy.root_device
    losses = [loss.reshape(()).to(device, torch.float32) for loss in of_window]
    loss = torch.stack(losses).mean() if losses else torch.zeros((), device=device)
    count = torch.full((1,), float(len(losses)), device=device)
    own = torch.cat(
        [loss.reshape(1), count, local_norms(strategy.optimizers, device, strategy.world_size)]
    )
    ranks: list[list[float]] = strategy.all_gather(own).reshape(-1, len(own)).tolist()
    seen = {rank: values[0] for rank, values in enumerate(ranks) if values[1]}
    norm = join_norms([(values[2], values[3]) for values in ranks])
    return seen, norm


def find_spike(
    ranges: dict[str, RecentRange], losses: dict[int, float], norm: float, *, skips: bool
) -> tuple[str, bool]:
    """The fault of a window, or nothing; and whether its update is left out. If it isn't, the
    values join the recent ones.

    Args:
        ranges: of the highest loss, the lowest loss and the gradient's norm.
        losses: by rank.
        norm: of the gradients.
        skips: leave out a value out of range too, not only one that isn't finite.
    """
    if wrong := {rank: loss for rank, loss in losses.items() if not math.isfinite(loss)}:
        return (
            f"the loss of {', '.join(f'rank {rank} is {loss}' for rank, loss in wrong.items())}",
            True,
        )
    if not math.isfinite(norm):
        return f"the gradient's norm is {norm}", True
    values = {"gradient's norm": (norm, "")}
    if losses:
        highest = max(losses, key=losses.__getitem__)
        lowest = min(losses, key=losses.__getitem__)
        values["highest loss"] = losses[highest], f", that of rank {highest},"
        values["lowest loss"] = losses[lowest], f", that of rank {lowest},"
    spikes = []
    for name, (value, whose) in values.items():
        lower, upper = ranges[name].bounds()
        if not lower <= value <= upper:
            said = (
                f"the {name}{whose} is {value:.6g}, out of its recent range from "
                f"{lower:.6g} to {upper:.6g}"
            )
            spikes.append(said)
    is_skipped = bool(spikes) and skips
    if not is_skipped:
        for name, (value, _) in values.items():
            ranges[name].values.append(value)
    return (spikes[0] if spikes else ""), is_skipped
