"""Digests of tensors, by their bits."""

from __future__ import annotations

import torch
from torch import Tensor

_CHUNK = 1 << 18
"""Elements that are looked at together; what is made of them for a moment takes 4 MiB."""
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
"""By an element's bytes. Two words for 8: at their highest bit all weights would be alike mod 2^64."""
_STEP = 0x1E3779B97F4A7C15
"""Half of the step from one weight to the next, as in multiplicative hashing: the weights of neighbours differ much."""


def digest_of(tensor: Tensor) -> Tensor:
    """The sum of all bits, taken as integers of at most 32 of them, each times an odd weight of its position, mod 2^64.

    A single flipped bit changes it: the difference is a power of 2, up to 2^31, times an odd number. So 0.0 and -0.0
    differ, and so do NaNs of different bits.

    Args:
        tensor: dense, of any shape and dtype.

    Returns:
        A scalar of int64, on the device of the tensor, without a wait for it.
    """
    words = _words_of(tensor.detach())
    weights = torch.arange(min(_CHUNK, len(words)), device=words.device).mul_(_STEP).mul_(2).add_(1)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for begin in range(0, len(words), _CHUNK):
        chunk = words[begin : begin + _CHUNK].to(torch.int64)
        # The weights of these positions are so much more than those of the first chunk.
        total += chunk.sum() * _signed(2 * _STEP * begin)
        total += chunk.mul_(weights[: len(chunk)]).sum()
    return total


def _words_of(tensor: Tensor) -> Tensor:
    """The bits in the elements' logical order, as integers. Of a contiguous tensor a view, else a copy."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg().reshape(-1).view(_WORDS[tensor.element_size()])


def _signed(number: int) -> int:
    """The number mod 2^64, as an int64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
