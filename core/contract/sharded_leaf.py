"""The leaf that stands in the place of a whole tensor in a sharded state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of a larger tensor.

    Attributes:
        offsets: of the box's first element, one for each dim of the larger tensor.
        sizes: of the box.
        tensor: its elements, of shape `sizes`; read at save, filled in place at load.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    tensor: Tensor

    @property
    def box(self) -> tuple[slice, ...]:
        """Its place in the larger tensor, as an index."""
        return tuple(
            slice(start, start + size) for start, size in zip(self.offsets, self.sizes, strict=True)
        )


@dataclass(frozen=True, slots=True)
class ShardedLeaf:
    """This rank's part of a tensor, for what isn't a DTensor. Every rank names every leaf, also
    without a chunk of it.

    The chunks of all ranks cover the tensor, and each element belongs to one chunk. A flat range
    that cuts through rows is the few boxes that it consists of.

    Attributes:
        global_shape: of the whole tensor, the same on all ranks.
        dtype: the same on all ranks.
        chunks: what this rank has of it.
    """

    global_shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: tuple[Chunk, ...] = ()

    def numel(self) -> int:
        """Number of elements of the whole tensor."""
        return math.prod(self.global_shape)

    def gather(self, total: Tensor, add: Callable[[Tensor], Tensor]) -> Tensor:
        """All ranks. The whole tensor, put together from everyone's chunks.

        Args:
            total: zeros of the global shape and the dtype, on the device on which the ranks
                communicate. It is filled.
            add: sums a tensor over all ranks.
        """
        for chunk in self.chunks:
            total[chunk.box] = chunk.tensor.to(total.device)
        # Each element is one rank's, and zero on the others.
        return add(total)


def has_turn(turn: int, positions: Iterable[tuple[int, int]]) -> bool:
    """True if this rank is the one of its replicas that writes the leaf. Decided without
    communication.

    Args:
        turn: a number that is the same on all ranks, and another one for the next leaf: the writing
            goes round.
        positions: this rank's coordinate, and the number of ranks, along each axis on which ranks
            have the same.
    """
    # The turn is read as a number with a digit for each axis, in base `size`: the rank with these
    # coordinates writes.
    for coordinate, size in positions:
        turn, chosen = divmod(turn, size)
        if coordinate != chosen:
            return False
    return True


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """A tensor in a checkpoint, as far as it is known before it is read.

    Attributes:
        shape: of the whole tensor.
        dtype: as it was saved.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
