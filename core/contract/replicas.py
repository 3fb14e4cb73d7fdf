"""Sharing out the writing of tensors that all ranks have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract.sharded_leaf import Chunk, ShardedLeaf

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

_MIN_BYTES = 1 << 16
"""Smaller ones are left to rank 0: telling where they are costs as much as they do."""


def share_out(state: Any, replicated: Iterable[Tensor], *, rank: int, size: int) -> Any:
    """All ranks, without communication. Replace tensors that every rank has by leaves that one rank writes.

    The largest goes first, to the rank that has least to write so far: every rank comes to the same answer.

    Args:
        state: nested dicts and lists.
        replicated: tensors with the same values on all ranks, in the same order.
        rank: of this process.
        size: number of processes.
    """
    owners = _owners({_place(tensor): tensor.nbytes for tensor in replicated}, size)
    return _replace(state, owners, rank)


def _owners(sizes: Mapping[tuple[int, int], int], num_ranks: int) -> dict[tuple[int, int], int]:
    loads = [0] * num_ranks
    owners = {}
    for place, num_bytes in sorted(sizes.items(), key=lambda item: -item[1]):  # a stable sort: the order is shared
        if num_bytes >= _MIN_BYTES:
            owners[place] = owner = loads.index(min(loads))
            loads[owner] += num_bytes
    return owners


def _replace(value: Any, owners: Mapping[tuple[int, int], int], rank: int) -> Any:
    if isinstance(value, dict):
        copied = value.copy()  # keeps the class, and the versions that a module's state carries in an attribute
        for key, item in value.items():
            copied[key] = _replace(item, owners, rank)
        if hasattr(value, "_metadata"):
            copied._metadata = value._metadata  # type: ignore[attr-defined]
        return copied
    if type(value) in (list, tuple):
        return type(value)(_replace(item, owners, rank) for item in value)
    if not hasattr(value, "data_ptr") or (owner := owners.get(_place(value))) is None:
        return value
    shape = tuple(value.shape)
    chunks = (Chunk((0,) * len(shape), shape, value),) if owner == rank else ()
    return ShardedLeaf(shape, value.dtype, chunks)


def _place(tensor: Tensor) -> tuple[int, int]:
    """Where it is in memory: a module's state holds other objects than its parameters, on the same memory."""
    return (tensor.data_ptr(), tensor.nbytes)
