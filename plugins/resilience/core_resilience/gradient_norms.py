"""The norm of gradients, whole ones or parts, without communication."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import get_total_norm

from core_resilience.layout import num_copies

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor
    from torch.optim import Optimizer


def local_norms(optimizers: Iterable[Optimizer], device: torch.device, world_size: int) -> Tensor:
    """This rank's share of the 2-norm of all gradients.

    Args:
        optimizers: of the parameters.
        device: of the rank.
        world_size: number of ranks, each of which has a part of each gradient, or all of it.

    Returns:
        Two numbers of float32: the norm of gradients that this rank has whole, and that of its
        parts of others, where a part that several ranks have is a share of it on each.
    """
    whole: list[Tensor] = []
    parts: dict[int, list[Tensor]] = {}
    for parameter in (
        each
        for optimizer in optimizers
        for group in optimizer.param_groups
        for each in group["params"]
    ):
        gradient: Any = parameter.grad
        if gradient is None:
            continue
        if hasattr(gradient, "to_local"):
            parts.setdefault(num_copies(gradient, world_size), []).append(gradient.to_local())
        else:
            whole.append(gradient)
    shares = [_norm(local, device) / copies**0.5 for copies, local in parts.items()]
    return torch.stack([_norm(whole, device), _norm(shares, device)])


def join_norms(norms: Sequence[tuple[float, float]]) -> float:
    """The norm of all gradients, from the `local_norms` of all ranks, which have equal whole
    ones.
    """
    whole = norms[0][0]
    return math.sqrt(whole * whole + sum(part * part for _, part in norms))


def _norm(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    if not tensors:
        return torch.zeros((), device=device)
    return get_total_norm(tensors).to(device, torch.float32)
