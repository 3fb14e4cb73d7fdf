"""Norms of gradients, and the algorithms that clip them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import torch
from torch import nn


class GradClipAlgorithmType(StrEnum):
    """The algorithms that clip gradients."""

    VALUE = "value"
    NORM = "norm"

    @classmethod
    def supported_type(cls, value: str) -> bool:
        """True if it is one of them."""
        return value in list(cls)

    @classmethod
    def supported_types(cls) -> list[str]:
        """All of them."""
        return list(cls)


def grad_norm(
    module: nn.Module, norm_type: float | int | str, group_separator: str = "/"
) -> dict[str, Any]:
    """The norms of all gradients, each under its parameter's name, and the total one."""
    power = float(norm_type)
    norms = {}
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            norm: Any = parameter.grad.data.norm(power)
            if hasattr(norm, "full_tensor"):  # the gradient lies in parts on several ranks
                norm = norm.full_tensor()
            norms[f"grad_{power}_norm{group_separator}{name}"] = norm
    if norms:
        norms[f"grad_{power}_norm_total"] = torch.tensor(list(norms.values())).norm(power)
    return norms
