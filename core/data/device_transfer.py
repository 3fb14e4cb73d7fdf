"""Brings batches to a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core.data.structure import map_leaves

if TYPE_CHECKING:
    from collections.abc import Callable

# A copy to CUDA may overlap with the host. One to the CPU would be read before it is there, and to
# MPS too: https://github.com/pytorch/pytorch/issues/83015
_BLOCKING = ("cpu", "mps")


def make_transfer(
    device: torch.device, convert: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> Callable[[Any], Any] | None:
    """A function that brings a loader's batches to `device`, made once for a whole stage.

    Args:
        device: where batches go.
        convert: casts one floating-point tensor, after the transfer.

    Returns:
        `batch -> batch`, or None if there is never anything to do: loaders collate on the CPU, so
        the batches of a run on the CPU are where they should be.
    """
    if device.type == "cpu" and convert is None:
        return None
    move = _mover(device, convert)
    return lambda batch: map_leaves(move, batch, is_leaf=_moves_itself, plain=False)


def to_device(
    batch: object,
    device: torch.device,
    convert: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Any:
    """Bring every tensor in `batch` to `device`; what is there already stays the same object.

    Args:
        batch: tensors of any shape in mappings, lists, tuples, named tuples, dataclasses and attrs
            classes, nested. Other objects move themselves if they have a method `to(device)`, and
            are left alone if not.
        device: where they go. Copies to CUDA don't wait, so that those from pinned memory overlap
            with the host.
        convert: casts one floating-point tensor, after the transfer.
    """
    return map_leaves(_mover(device, convert), batch, is_leaf=_moves_itself, plain=False)


def _mover(
    device: torch.device, convert: Callable[[torch.Tensor], torch.Tensor] | None
) -> Callable[[Any], object]:
    non_blocking = device.type not in _BLOCKING

    def finish(leaf: Any) -> Any:
        if convert is None or not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        return convert(leaf)

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            if leaf.device != device:
                leaf = leaf.to(device, non_blocking=non_blocking)
            return finish(leaf)
        if not _moves_itself(leaf):
            return leaf
        moved = leaf.to(device)
        if moved is None:  # it moved in place
            moved = leaf
        if convert is None:
            return moved
        return map_leaves(finish, moved, plain=False)

    return move


def _moves_itself(data: object) -> bool:
    return callable(getattr(data, "to", None))
