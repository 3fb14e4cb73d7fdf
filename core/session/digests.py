"""Digests of tensors, by their bits."""

from __future__ import annotations

import torch
from torch import Tensor

_COLUMNS = 8191
"""Elements so far apart are added up first: each has a weight of its own in a tensor that is
smaller.
"""
_CHUNK = _COLUMNS * 512
"""Elements that are looked at together; what is made of them for a moment takes 32 MiB."""
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
"""By an element's bytes. Two words for 8: at their highest bit all weights would be alike mod
2^64.
"""
_STEP = 0x1E3779B97F4A7C15
"""Half of the step from one weight to the next, as in multiplicative hashing: the weights of
neighbours differ much.
"""


def digest_of(tensor: Tensor) -> Tensor:
    """The sum of all bits, taken as integers of at most 32 of them, each times an odd weight of its
    column, mod 2^64.

    A single flipped bit changes it: the difference is a power of 2, up to 2^31, times an odd
    number. So 0.0 and -0.0 differ, and so do NaNs of different bits.

    Args:
        tensor: dense, of any shape and dtype.

    Returns:
        A scalar of int64, on the device of the tensor, without a wait for it.
    """
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    # The bits in the elements' logical order: of a contiguous tensor a view, else a copy.
    words = tensor.resolve_neg().reshape(-1).view(_WORDS[tensor.element_size()])
    columns = torch.zeros(min(_COLUMNS, len(words)), dtype=torch.int64, device=words.device)
    for chunk in words.split(_CHUNK):
        num_whole = len(chunk) // _COLUMNS * _COLUMNS
        if num_whole:
            columns += chunk[:num_whole].view(-1, _COLUMNS).sum(0)
        columns[: len(chunk) - num_whole] += chunk[num_whole:]
    weights = torch.arange(len(columns), device=words.device).mul_(_STEP).mul_(2).add_(1)
    return columns.mul_(weights).sum()
