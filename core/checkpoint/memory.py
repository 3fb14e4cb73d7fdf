"""Tensors as bytes, and bytes as tensors, without a copy where that is possible."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

ALIGNMENT_BYTES = 64
"""Alignment of each tensor in a file, so that it can be used where it is mapped."""

_PIECE_BYTES = 2 << 20
"""Bytes that are copied at a time of a tensor that isn't in the processor's memory, or not in order."""


def pieces(tensor: torch.Tensor) -> Iterator[Any]:
    """The elements in order, as bytes: a contiguous tensor on the CPU whole, others in small copies.

    Each piece is to be used before the next one is asked for.
    """
    if not tensor.numel():
        return
    if (tensor.device.type == "cpu" and tensor.is_contiguous()) or tensor.nbytes <= _PIECE_BYTES:
        held = tensor.cpu().contiguous()
        yield bytes_of(held)
        return
    # By rows, so that pieces are contiguous; a row that is itself too large is cut by its own rows.
    row_bytes = tensor.nbytes // tensor.shape[0]
    if row_bytes > _PIECE_BYTES:
        for row in tensor:
            yield from pieces(row)
        return
    for part in tensor.split(_PIECE_BYTES // row_bytes):
        held = part.cpu().contiguous()
        yield bytes_of(held)


def bytes_of(tensor: torch.Tensor) -> Any:
    """The bytes of a contiguous tensor on the CPU: a view that is good as long as the tensor lives."""
    # Not through NumPy, which knows neither bfloat16 nor the 8-bit floats.
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def box_span(sizes: tuple[int, ...], offsets: tuple[int, ...], lengths: tuple[int, ...]) -> tuple[int, int]:
    """First element, and the one after the last, of a box in a contiguous tensor of shape `sizes`."""
    strides = strides_of(sizes)
    start = sum(offset * stride for offset, stride in zip(offsets, strides, strict=True))
    return start, start + 1 + sum((length - 1) * stride for length, stride in zip(lengths, strides, strict=True))


def strides_of(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))


def box_of(content: torch.Tensor, dtype: torch.dtype, sizes: tuple[int, ...], lengths: tuple[int, ...]) -> torch.Tensor:
    """A box of a contiguous tensor of shape `sizes`, on bytes that begin with the box's first element."""
    return content.view(dtype).as_strided(lengths, strides_of(sizes))
