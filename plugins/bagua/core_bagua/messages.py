"""Tensors as the messages in which ranks exchange them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor


def exchange(
    tensors: Mapping[str, Tensor],
    by: Callable[[Mapping[str, Tensor], Tensor], Tensor],
    *,
    flatten: bool,
) -> None:
    """All ranks. Replace tensors by what becomes of their messages.

    Args:
        tensors: by name, the same on all ranks.
        by: given the tensors of a message and the message, of shape (elements,), returns what takes
            its place.
        flatten: one message for all tensors of a format; otherwise one each.
    """
    with torch.no_grad():
        for parts in _messages(tensors, flatten):
            result = by(parts, flat(parts))
            for tensor, part in zip(parts.values(), split(parts, result), strict=True):
                tensor.copy_(part)


def flat(parts: Mapping[str, Tensor]) -> Tensor:
    """A new message, of shape (elements,)."""
    return torch.cat([tensor.detach().flatten() for tensor in parts.values()])


def split(parts: Mapping[str, Tensor], message: Tensor) -> Iterator[Tensor]:
    """The parts of a message, in the shapes of those that it was made of."""
    pieces = message.split([tensor.numel() for tensor in parts.values()])
    return (piece.view(tensor.shape) for tensor, piece in zip(parts.values(), pieces, strict=True))


def _messages(tensors: Mapping[str, Tensor], flatten: bool) -> Iterator[Mapping[str, Tensor]]:
    if not flatten:
        yield from ({name: tensor} for name, tensor in tensors.items())
        return
    by_format: dict[object, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        by_format.setdefault((tensor.dtype, tensor.device), {})[name] = tensor
    yield from by_format.values()
