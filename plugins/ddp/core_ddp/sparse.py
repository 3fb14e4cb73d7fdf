"""Sparse gradients, as of `nn.Embedding(..., sparse=True)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.hooks import RemovableHandle


def copy_sparse_gradients(module: nn.Module, hooks: dict[Tensor, RemovableHandle]) -> None:
    """Give each sparse gradient memory of its own before torch's reducer divides it in place,
    during backward.

    An embedding gives the gradient of its outputs on, without a copy, as the values of its
    weight's. A layer whose outputs are added to them reads the same memory later in the backward,
    and would get a share of its gradient (torch 2.13, with and without a communication hook).

    Args:
        module: whose layers are looked through.
        hooks: those that are there, by weight; new ones are added.
    """
    for part in module.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            weight = part.weight
            if weight.requires_grad and weight not in hooks:
                hooks[weight] = weight.register_hook(torch.clone)
