"""Conversions between a whole tensor and its shards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from core.checkpoint import gather_whole


def own_part(whole: Tensor, like: DTensor) -> Tensor:
    """This rank's part of a tensor that every rank has, as a view; no communication.

    Args:
        whole: shape of `like`, on any device.
        like: whose placement it gets.
    """
    shape, offset = compute_local_shape_and_global_offset(
        like.shape, like.device_mesh, like.placements
    )
    return whole[
        tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
    ]


def shard_like(whole: Tensor, like: DTensor) -> DTensor:
    """All ranks. A DTensor placed as `like` is, over this rank's part of `whole`; no
    communication.
    """
    return _over(own_part(whole, like), like)


def _over(part: Tensor, like: DTensor) -> DTensor:
    return DTensor.from_local(
        part,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def fill_from(whole: Tensor, target: Tensor) -> None:
    """Copy this rank's part of `whole` into `target`, in place; all of it if `target` isn't
    sharded.
    """
    with torch.no_grad():
        if isinstance(target, DTensor):
            # `to_local()` is a view of the shard's own memory.
            target.to_local().copy_(own_part(whole, target))
        else:
            target.copy_(whole)


def without_wrapper(value: Any) -> Any:
    """A leaf as it is; a DTensor whose shard says how it is gathered (`fsdp_pre_all_gather`), over
    what that holds.
    """
    local = value.to_local() if isinstance(value, DTensor) else None
    if not hasattr(local, "fsdp_pre_all_gather"):
        return value
    (name, *_), _ = local.__tensor_flatten__()  # type: ignore[union-attr]  # torch's protocol of such tensors
    return _over(getattr(local, name), value)


def gather(value: Any, *, keep: bool) -> Any:
    """All ranks. A sharded tensor as a whole one on the CPU, where it is to be kept; anything else
    as it is.

    Args:
        value: a leaf of a state.
        keep: True if this rank wants it; the others only take part, and get None.
    """
    if not isinstance(value, DTensor):
        return value if keep else None
    with torch.no_grad():
        whole = gather_whole(value)
    return whole.cpu() if keep else None
