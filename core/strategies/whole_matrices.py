"""Optimizers whose step is made of matrix products, and so of whole matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.optim import Optimizer


def needs_whole_matrices(optimizer: Optimizer) -> bool:
    """True if an optimizer's step is wrong where it sees a part of a matrix: torch's Muon, and what is made of it.

    Another class says so by an attribute `needs_whole_matrices = True`.
    """
    return isinstance(optimizer, torch.optim.Muon) or getattr(optimizer, "needs_whole_matrices", False) is True
