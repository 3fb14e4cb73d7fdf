"""Functions of Lightning's `utilities` that programs use."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import torch

from core import rank_zero_info, rank_zero_only, rank_zero_warn
from core.data import to_device

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "PossibleUserWarning",
    "get_filesystem",
    "grad_norm",
    "move_data_to_device",
    "rank_zero_deprecation",
    "rank_zero_info",
    "rank_zero_only",
    "rank_zero_warn",
]

rank_zero_deprecation = functools.partial(rank_zero_warn, category=DeprecationWarning)


class PossibleUserWarning(UserWarning):
    """A category that programs filter warnings by; no warning of core has it."""


def get_filesystem(path: str | os.PathLike[str], **options: Any) -> Any:
    """The file system of a local path or a URL; `options` are fsspec's."""
    import fsspec

    return fsspec.url_to_fs(os.fspath(path), **options)[0]


def move_data_to_device(batch: Any, device: torch.device | str | int) -> Any:
    """Tensors in nested collections, on the device."""
    return to_device(batch, torch.device(device))


def grad_norm(module: nn.Module, norm_type: float | int | str, group_separator: str = "/") -> dict[str, Any]:
    """The norms of all gradients, each under its parameter's name, and the total one."""
    power = float(norm_type)
    norms = {
        f"grad_{power}_norm{group_separator}{name}": parameter.grad.data.norm(power)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    if norms:
        norms[f"grad_{power}_norm_total"] = torch.tensor(list(norms.values())).norm(power)
    return norms
