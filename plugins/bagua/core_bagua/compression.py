"""Eight bits an element, and what they leave out added to the next message.

Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", VLDB 2021 (the
primitive C_LP_S); Tang et al., "DoubleSqueeze: Parallel Stochastic Gradient Descent with
Double-Pass Error-Compensated Compression", ICML 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn import functional

from core_bagua.messages import flat, split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

_LEVELS = 255


def compress(rows: Tensor) -> Tensor:
    """Each row in 256 levels between its smallest and its largest element.

    Args:
        rows: shape (n, elements), of a floating dtype.

    Returns:
        Bytes, shape (n, 2 * itemsize + elements): the smallest, the distance of two levels, and
        each element's level.
    """
    smallest, largest = rows.aminmax(dim=1, keepdim=True)
    distance = (largest - smallest) / _LEVELS
    levels = (rows - smallest) / torch.where(distance > 0, distance, 1)
    header = torch.cat([smallest, distance], dim=1).contiguous().view(torch.uint8)
    return torch.cat([header, levels.round_().clamp_(0, _LEVELS).to(torch.uint8)], dim=1)


def decompress(packed: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows that `compress` was given, shape (n, elements), as far as bytes tell."""
    header = (
        packed[:, : 2 * dtype.itemsize].clone(memory_format=torch.contiguous_format).view(dtype)
    )
    return packed[:, 2 * dtype.itemsize :].to(dtype) * header[:, 1:] + header[:, :1]


class CompressedMean:
    """The mean over ranks in eight bits, of messages of named tensors. It keeps what is left out,
    by name.

    Each rank gets a part of all messages, averages it, and sends the mean to all: both ways are
    compressed, and both leave something out. What the second way leaves out of a mean is `size`
    times as much in one rank's message.

    Attributes:
        rest: what this rank adds to its next message.
    """

    def __init__(self) -> None:
        self.rest: dict[str, Tensor] = {}

    def __call__(self, parts: Mapping[str, Tensor], message: Tensor) -> Tensor:
        """All ranks. The mean of all messages."""
        known = {name: self._rest_of(name, part) for name, part in parts.items()}
        mean, rest = compressed_mean(message + flat(known))
        # Of a gradient that isn't finite nothing is kept: the mean isn't either, and says so.
        self.rest.update(zip(parts, split(parts, rest.nan_to_num(0.0, 0.0, 0.0)), strict=True))
        return mean

    def _rest_of(self, name: str, like: Tensor) -> Tensor:
        rest = self.rest.get(name)
        return torch.zeros_like(like) if rest is None else rest.to(like)


def compressed_mean(message: Tensor) -> tuple[Tensor, Tensor]:
    """All ranks. The mean of everybody's message, shape (elements,), and what this rank hasn't sent
    of its own.
    """
    size, rank, num_elements = dist.get_world_size(), dist.get_rank(), message.numel()
    width = -(-num_elements // size)
    rows = functional.pad(message, (0, size * width - num_elements)).view(size, width)
    sent = compress(rows)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    mean = decompress(received, rows.dtype).mean(dim=0, keepdim=True)
    packed = compress(mean)
    gathered = [torch.empty_like(packed) for _ in range(size)]
    dist.all_gather(gathered, packed)
    rest = rows - decompress(sent, rows.dtype)
    rest[rank] += size * (mean - decompress(packed, rows.dtype))[0]
    result = decompress(torch.cat(gathered), rows.dtype)
    return result.flatten()[:num_elements], rest.flatten()[:num_elements]
