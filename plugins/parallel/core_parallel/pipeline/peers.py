"""Agreements of ranks that run the same stage for other data, and among which tokens travel."""

from __future__ import annotations

import zlib
from math import gcd
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from core import ModuleError

if TYPE_CHECKING:
    from torch import Tensor


class Peers:
    """The ranks of one expert group.

    Args:
        group: of them.
        device: of this rank.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group, self._device = group, device

    def least(self, number: int) -> int:
        """All ranks of the group. The smallest of their numbers."""
        return int(self._gathered([number]).min())

    def common_batch(self, size: int | None, shapes: str) -> tuple[int | None, Any]:
        """All ranks of the group. A size that divides those of all their batches, and a key of all
        their shapes.

        Args:
            size: of this rank's batch, None if it has none.
            shapes: of all that is in it.

        Returns:
            The largest such size, None if one of them has none; and the key, which differs where
            any rank's does.
        """
        found = self._gathered([size or 0, zlib.crc32(shapes.encode())]).tolist()
        sizes = [int(one) for one, _ in found]
        key = tuple(map(tuple, found))
        if 0 in sizes:
            return None, key
        return gcd(*sizes), key

    def reference(self, number: float) -> float:
        """All ranks of the group. The largest of their numbers."""
        return float(self._gathered([number]).max())

    def common_factor(self, factor: Tensor, *, is_known: bool) -> Tensor:
        """All ranks of the group. The factor of gradients, which are of all their losses by then.

        Args:
            factor: of this rank, a scalar.
            is_known: False if this rank's loss is of no items, and so has none.

        Raises:
            ModuleError: they differ.
        """
        found: list[list[float]] = self._gathered([float(factor), float(is_known)]).tolist()
        known = [one for one, counts in found if counts]
        tolerance = 32 * torch.finfo(factor.dtype).eps
        if known and max(known) - min(known) > tolerance * max(map(abs, known)):
            raise ModuleError(
                f"Losses of ranks whose experts are distributed are scaled by {min(known):.6g} to "
                f"{max(known):.6g} after a schedule has computed the gradients of all of them. "
                "Return the loss from the step with its 'weight', scale it there, or leave "
                "schedule out."
            )
        if is_known or not known:
            return factor
        return torch.full_like(factor, known[0])

    def _gathered(self, numbers: list[float]) -> Tensor:
        own = torch.tensor(numbers, device=self._device, dtype=torch.float64)
        parts = [torch.empty_like(own) for _ in range(self._group.size())]
        dist.all_gather(parts, own, group=self._group)
        return torch.stack(parts)
