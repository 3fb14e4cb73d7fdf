"""What a sharded state has in the place of a whole tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

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
        return tuple(slice(start, start + size) for start, size in zip(self.offsets, self.sizes, strict=True))


@dataclass(frozen=True, slots=True)
class ShardedLeaf:
    """This rank's part of a tensor, for what isn't a DTensor. Every rank names every leaf, also without a chunk of it.

    The chunks of all ranks cover the tensor, and each element belongs to one chunk. A flat range that cuts through
    rows is the few boxes that it consists of.

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
            total: zeros of the global shape and the dtype, on the device on which the ranks communicate. It is filled.
            add: sums a tensor over all ranks.
        """
        for chunk in self.chunks:
            total[chunk.box] = chunk.tensor.to(total.device)
        return add(total)


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """A tensor in a checkpoint, as far as it is known before it is read.

    Attributes:
        shape: of the whole tensor.
        dtype: as it was saved.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
