"""Gradients that a rank of a context group has a term of: those of parameters, of its part of the
sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import get_gradient_edge

from core import ModuleError
from core_parallel.modules.absent import is_absent

if TYPE_CHECKING:
    from torch import Tensor, nn


def refuse_terms(module: nn.Module, size: int, gradient: Tensor) -> None:
    """Within a backward: refuse `torch.autograd.grad` for parameters.

    Args:
        module: that was called in parts.
        size: of the context group.
        gradient: for which torch calls it as a hook; it is left as it is.

    Raises:
        ModuleError: with the name of one of them.
    """
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad or is_absent(parameter):
            continue
        try:
            if torch._C._will_engine_execute_node(get_gradient_edge(parameter).node):
                return  # backward() adds it up over the ranks
        except RuntimeError as error:  # torch's answer where the gradient is what was asked for
            raise ModuleError(
                f"torch.autograd.grad was asked for the gradient of {name!r}, of which each of "
                f"{size} ranks has a term under context=: that of its part of the sequence. Call "
                "backward, after which .grad is whole; or leave context out."
            ) from error
