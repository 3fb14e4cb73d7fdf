"""Functions of Lightning's `utilities` that programs use."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import Any

import torch
from torch import nn

from core.data import map_leaves, to_device
from core.fabric import FabricDataLoader, FabricModule, FabricOptimizer

_WRAPPERS: dict[type, str] = {
    FabricModule: "module",
    FabricOptimizer: "optimizer",
    FabricDataLoader: "loader",
}
"""The classes that Fabric returns, each with the attribute that is the program's own object."""


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


def convert_tensors_to_scalars(data: Any) -> Any:
    """Nested collections with numbers in the place of tensors, which have one element each."""

    def number(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.numel() != 1:
            raise ValueError(f"A tensor of shape {tuple(value.shape)} is no single number.")
        return value.item()

    return map_leaves(number, data)


def _unwrap_objects(collection: Any) -> Any:
    """Nested collections with the program's own objects in the place of what Fabric has returned
    for them.
    """

    def own(value: Any) -> Any:
        for kind, attribute in _WRAPPERS.items():
            if isinstance(value, kind):
                return getattr(value, attribute)
        return value

    return map_leaves(own, collection)


def cli_lightning_logo() -> None:
    """Print which program runs in Lightning's place, in the line where its logo would stand."""
    sys.stdout.write("core-lightning: this program runs on core.\n")


def is_wrapped(obj: object) -> bool:
    """True if `Fabric.setup` or `setup_dataloaders` has returned it."""
    return isinstance(obj, tuple(_WRAPPERS))


def get_filesystem(path: str | os.PathLike[str], **options: Any) -> Any:
    """The file system of a local path or a URL; `options` are fsspec's."""
    import fsspec

    return fsspec.url_to_fs(os.fspath(path), **options)[0]


def move_data_to_device(batch: Any, device: torch.device | str | int) -> Any:
    """Tensors in nested collections, on the device."""
    return to_device(batch, torch.device(device))


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
