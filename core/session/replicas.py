"""Sharing out the writing of what several ranks have in common."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from core.contract.sharded_leaf import Chunk, ShardedLeaf, has_turn
from core.session import nested

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh

_MIN_BYTES = 1 << 16
"""Smaller ones are left to rank 0: telling where they are costs as much as they do."""


def share_out(state: Any, replicated: Iterable[Tensor], *, rank: int, size: int) -> object:
    """All ranks, without communication. Replace tensors that every rank has by leaves that one rank
    writes.

    The largest goes first, to the rank that has least to write so far: every rank comes to the same
    answer.

    Args:
        state: nested dicts and lists.
        replicated: tensors with the same values on all ranks, in the same order.
        rank: of this process.
        size: number of processes.
    """
    # By memory, so that a tied parameter is one, and the state's detached tensors are found again.
    sizes = {_memory_of(tensor): tensor.nbytes for tensor in replicated}
    loads = [0] * size
    owners = {}
    # a stable sort: the order is shared
    for memory, num_bytes in sorted(sizes.items(), key=lambda item: -item[1]):
        if num_bytes >= _MIN_BYTES:
            # Of equal loads the first: `index` gives the same rank everywhere.
            owners[memory] = owner = loads.index(min(loads))
            loads[owner] += num_bytes

    def shared(value: Any) -> object:
        if not hasattr(value, "data_ptr") or _memory_of(value) not in owners:
            return value
        if owners[_memory_of(value)] != rank:
            return elsewhere(value)
        return here(value)

    return nested.replace(shared, state)


def drop_copies(state: Any, mesh: DeviceMesh) -> object:
    """All ranks, without communication. Of the ranks that have the same part of a DTensor, let one
    write it.

    A DTensor over some axes of the mesh is the same along the others; over which of them one rank
    can't see from it. What has to be written goes round among the ranks along those axes.

    Args:
        state: nested dicts and lists, in the same order on all ranks.
        mesh: all ranks by named axes.
    """
    axes, coordinate, turns = mesh.mesh_dim_names or (), mesh.get_coordinate() or (), count()

    def dropped(value: Any) -> object:
        own: tuple[str, ...] = ()
        if hasattr(value, "device_mesh"):
            own = value.device_mesh.mesh_dim_names or ()
        # No DTensor, one cut along every axis, which has no copies, or one on the user's own mesh.
        if not own or own == axes or not set(own) <= set(axes):
            return value
        # Ranks walk in the same order, so that the n-th leaf is the same one on all of them.
        positions = (
            (coordinate[dim], mesh.size(dim)) for dim, axis in enumerate(axes) if axis not in own
        )
        if has_turn(next(turns), positions):
            return value
        return elsewhere(value)

    return nested.replace(dropped, state)


def here(value: Any) -> ShardedLeaf:
    """The leaf of a tensor that this rank writes."""
    shape = tuple(value.shape)
    return ShardedLeaf(shape, value.dtype, (Chunk((0,) * len(shape), shape, value),))


def elsewhere(value: Any) -> ShardedLeaf:
    """The leaf of a tensor, or of one that was described, which another rank writes."""
    return ShardedLeaf(tuple(value.shape), value.dtype)


def _memory_of(tensor: Tensor) -> tuple[int, int]:
    """Address and size of a tensor's elements: a module's state holds other objects than its
    parameters, on them.
    """
    return (tensor.data_ptr(), tensor.nbytes)
