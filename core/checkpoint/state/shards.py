"""The parts of a leaf that this rank has: chunks of the whole tensor, with the memory that holds
them.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch

from core.contract.sharded_leaf import Chunk, ShardedLeaf, has_turn

if TYPE_CHECKING:
    from collections.abc import Sequence


def is_sharded(value: object) -> bool:
    """True if this rank may have only a part of a tensor: our own form, or one of torch's
    protocols, as in DTensors.
    """
    return hasattr(value, "global_shape") or hasattr(type(value), "__create_chunk_list__")


def chunks_to_write(name: str, leaf: Any, rank: int) -> Sequence[Chunk]:
    """The chunks of a leaf that this rank has to write, without asking the others: a plain tensor
    is rank 0's.

    Args:
        name: of the leaf.
        leaf: a tensor, a DTensor, or a `ShardedLeaf`.
        rank: of this process.
    """
    if isinstance(leaf, ShardedLeaf) or hasattr(leaf, "global_offsets"):
        return chunks_to_fill(leaf)
    is_own = rank == 0
    if hasattr(type(leaf), "__create_chunk_list__"):
        is_own = _is_first_replica(name, leaf)
    return chunks_to_fill(leaf) if is_own else []


def chunks_to_fill(leaf: Any, known: dict[Any, Any] | None = None) -> Sequence[Chunk]:
    """All that this rank has of a leaf.

    Args:
        leaf: a tensor, a DTensor, or a `ShardedLeaf`.
        known: of DTensors that were seen before, by how they are laid out; added to. To work out a
            chunk takes long.
    """
    if isinstance(leaf, ShardedLeaf):
        return leaf.chunks
    if hasattr(leaf, "global_offsets"):  # a plain tensor as torch 2.15's CheckpointableTensor
        own = leaf.detach()
        boxes = zip(leaf.global_offsets, leaf.local_offsets, leaf.local_sizes, strict=True)
        return [
            Chunk(tuple(there), tuple(sizes), own[Chunk(here, sizes, own).box])
            for there, here, sizes in boxes
        ]
    if not hasattr(type(leaf), "__create_chunk_list__"):
        return [Chunk((0,) * leaf.dim(), tuple(leaf.shape), leaf.detach())]
    with torch.no_grad():  # autograd would make a node for it
        local = leaf.to_local().detach()
    if not local.numel():
        return []
    if known is None:
        known = {}
    layout = (leaf.shape, leaf.placements, id(leaf.device_mesh), local.shape)
    if layout not in known:
        # what torch's own checkpoints ask, of strided shards too
        (found,) = leaf.__create_chunk_list__()
        known[layout] = (tuple(found.offsets), tuple(found.sizes))
    offsets, sizes = known[layout]
    return [Chunk(offsets, sizes, local)]


def shape_of(leaf: Any) -> tuple[int, ...]:
    """The shape of the whole tensor."""
    if hasattr(leaf, "global_shape"):
        return tuple(leaf.global_shape)
    return tuple(leaf.shape)


def _is_first_replica(name: str, leaf: Any) -> bool:
    """True if this rank writes, of those that have the same part. The turn changes with the leaf's
    name.
    """
    coordinate = leaf.device_mesh.get_coordinate()
    if coordinate is None:  # the leaf is on other ranks only
        return False
    replicated = [dim for dim, placement in enumerate(leaf.placements) if placement.is_replicate()]
    # Not `hash`, which gives another number in each process.
    return has_turn(
        zlib.crc32(name.encode()),
        ((coordinate[dim], leaf.device_mesh.size(dim)) for dim in replicated),
    )
