"""A DTensor as a whole tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def gather_whole(placed: Any) -> Tensor:
    """All ranks of its mesh. The whole of a DTensor, on the device where its parts are.

    Of a dim that is cut over two axes, what was cut last is put together first. Torch 2.9's
    `full_tensor()` goes the other way round, and puts rows into wrong places, or fails, where the
    parts aren't of one size.
    """
    placed = placed.detach()
    for axis, placement in enumerate(placed.placements):
        if hasattr(placement, "split_factor"):  # it was cut over a later axis before this one
            placed = _joined(placed, axis, placement.dim)
    return placed.full_tensor()  # type: ignore[no-any-return]


def _joined(placed: Any, axis: int, dim: int) -> Any:
    """The same DTensor, replicated over one axis of its mesh."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh = placed.device_mesh
    placements = [
        Replicate() if index == axis else one for index, one in enumerate(placed.placements)
    ]
    shape, _ = compute_local_shape_and_global_offset(placed.shape, mesh, placements)
    local = placed.to_local()
    whole = torch.empty(shape, device="meta")  # for its strides
    along = DeviceMesh.from_group(mesh.get_group(axis), mesh.device_type)
    part = DTensor.from_local(
        local, along, [Shard(dim)], run_check=False, shape=whole.shape, stride=whole.stride()
    )
    return DTensor.from_local(
        part.full_tensor(),
        mesh,
        placements,
        run_check=False,
        shape=placed.shape,
        stride=placed.stride(),
    )
