"""Tensors as bytes, and bytes as tensors, without a copy where that is possible."""

from __future__ import annotations

import ctypes
import math
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch

from core.checkpoint.copies.bounce import BOUNCE_BYTES, Bounce

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Key = TypeVar("Key")

Shape: TypeAlias = tuple[int, ...]
"""Sizes of a tensor, or offsets in it."""

ALIGNMENT_BYTES = 64
"""Alignment of each tensor in a file, so that it can be used where it is mapped."""

_PIECE_BYTES = BOUNCE_BYTES // 2
"""Bytes that are copied at a time of a tensor that isn't in the processor's memory, or not in
order.
"""


def pieces(tensors: Mapping[Key, torch.Tensor]) -> Iterator[tuple[Key, Any]]:
    """The elements of tensors in order, as bytes, each piece with the key of its tensor.

    A contiguous tensor on the CPU comes whole, others in small copies: a CUDA device makes the next
    one while one is used. Each piece is to be used before the next one is asked for.
    """
    bounce = Bounce()
    ahead: list[tuple[Key, torch.Tensor]] = []
    try:
        for key, tensor in tensors.items():
            for part in _parts(tensor):
                ahead.append((key, _begin_copy(part, bounce)))
                if len(ahead) > 1:
                    yield _awaited(*ahead[0], bounce)  # its memory must live until it is used
                    ahead.pop(0)
        for begun in ahead:
            yield _awaited(*begun, bounce)
    finally:
        bounce.finish()  # an error: no device may go on writing to memory that is given back


def _parts(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    if not tensor.numel():
        return ()
    if (tensor.device.type == "cpu" and tensor.is_contiguous()) or tensor.nbytes <= _PIECE_BYTES:
        return (tensor,)
    # By rows, so that pieces are contiguous; a row that is itself too large is cut by its own rows.
    row_bytes = tensor.nbytes // tensor.shape[0]
    if row_bytes > _PIECE_BYTES:
        return chain.from_iterable(map(_parts, tensor))
    rows: tuple[torch.Tensor, ...] = tensor.split(_PIECE_BYTES // row_bytes)
    return rows


def _begin_copy(part: torch.Tensor, bounce: Bounce) -> torch.Tensor:
    """The part in memory, in order; one from a CUDA device will be there when its copy was
    awaited.
    """
    if part.device.type != "cuda":
        return part.cpu().contiguous()
    buffer = bounce.take(part.nbytes, part.device)
    buffer.view(part.dtype).view(part.shape).copy_(part, non_blocking=True)
    bounce.note_copy(buffer, part.device)
    return buffer


def _awaited(key: Key, held: torch.Tensor, bounce: Bounce) -> tuple[Key, object]:
    bounce.await_copy(held)
    return key, bytes_of(held)


def bytes_of(tensor: torch.Tensor) -> Any:
    """The bytes of a contiguous tensor on the CPU: a view that is good as long as the tensor
    lives.
    """
    # Not through NumPy, which knows neither bfloat16 nor the 8-bit floats.
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def strides_of(sizes: Shape) -> Shape:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))
