"""Functions of Lightning's `utilities` that programs use."""

from __future__ import annotations

import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import nn

from core import Strategy
from core.data import map_leaves, to_device
from core.fabric import FabricDataLoader, FabricModule, FabricOptimizer


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
        if isinstance(value, FabricModule):
            return value.module
        if isinstance(value, FabricOptimizer):
            return value.optimizer
        return value.loader if isinstance(value, FabricDataLoader) else value

    return map_leaves(own, collection)


def cli_lightning_logo() -> None:
    """Print which program runs in Lightning's place, in the line where its logo would stand."""
    sys.stdout.write("core-lightning: this program runs on core.\n")


def is_wrapped(obj: object) -> bool:
    """True if `Fabric.setup` or `setup_dataloaders` has returned it."""
    return isinstance(obj, FabricModule | FabricOptimizer | FabricDataLoader)


def get_filesystem(path: str | os.PathLike[str], **options: Any) -> Any:
    """The file system of a local path or a URL; `options` are fsspec's."""
    import fsspec

    return fsspec.url_to_fs(os.fspath(path), **options)[0]


def is_shared_filesystem(
    strategy: Strategy, path: str | os.PathLike[str] | None = None, timeout: float = 3
) -> bool:
    """All ranks. True if a file that rank 0 makes in a folder appears to all of them, within
    `timeout` seconds.

    The path is the folder, or a file in it; None is the current one. URLs are shared. The strategy
    is that of a Trainer or Fabric that has begun.
    """
    if strategy.world_size == 1 or (path is not None and "://" in os.fspath(path)):
        return True
    place = Path(path or ".").resolve()
    if not strategy.reduce_boolean_decision(place.exists()):
        raise FileNotFoundError(
            f"{place} isn't there on every rank, so it can't be told if it is shared."
        )
    probe = Path(
        strategy.broadcast(
            str((place if place.is_dir() else place.parent) / f".shared-{os.getpid()}")
        )
    )
    if strategy.is_global_zero:
        probe.touch()
    strategy.barrier("is_shared_filesystem")
    until = time.monotonic() + timeout
    while not (found := probe.exists()) and time.monotonic() < until:
        time.sleep(0.05)
    found = strategy.reduce_boolean_decision(found)
    if strategy.is_global_zero:
        probe.unlink()
    return found


def move_data_to_device(batch: Any, device: torch.device | str | int) -> Any:
    """Tensors in nested collections, on the device."""
    return to_device(batch, torch.device(device))


def grad_norm(
    module: nn.Module, norm_type: float | int | str, group_separator: str = "/"
) -> dict[str, Any]:
    """The norms of all gradients, each under its parameter's name, and the total one."""
    power = float(norm_type)
    norms = {
        f"grad_{power}_norm{group_separator}{name}": _whole(parameter.grad.data.norm(power))
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    if norms:
        norms[f"grad_{power}_norm_total"] = torch.tensor(list(norms.values())).norm(power)
    return norms


def _whole(norm: Any) -> Any:
    """The norm of all parts, where the gradient lies in parts on several ranks."""
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
