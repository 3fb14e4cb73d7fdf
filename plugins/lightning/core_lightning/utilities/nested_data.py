"""Tensors in nested collections: as numbers, or on another device."""

from __future__ import annotations

from typing import Any

import torch

from core.data import map_leaves, to_device


def convert_tensors_to_scalars(data: Any) -> Any:
    """Nested collections with numbers in the place of tensors, which have one element each."""

    def number(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.numel() != 1:
            raise ValueError(f"A tensor of shape {tuple(value.shape)} is no single number.")
        return value.item()

    return map_leaves(number, data)


def move_data_to_device(batch: Any, device: torch.device | str | int) -> Any:
    """Tensors in nested collections, on the device."""
    return to_device(batch, torch.device(device))
