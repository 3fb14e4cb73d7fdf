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
    mesh = placed.device_mesh
    for axis, placement in enumerate(placed.placements):
        if not hasattr(placement, "split_factor"):
            continue
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Replicate, Shard
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        # It was cut over a later axis before this one, over which it is replicated first.
        placements = [*placed.placements]
        placements[axis] = Replicate()
        shape, _ = compute_local_shape_and_global_offset(placed.shape, mesh, placements)
        whole = torch.empty(shape, device="meta")  # for its strides
        part = DTensor.from_local(
            placed.to_local(),
            DeviceMesh.from_group(mesh.get_group(axis), mesh.device_type),
            [Shard(placement.dim)],
            run_check=False,
            shape=whole.shape,
            stride=whole.stride(),
        )
        placed = DTensor.from_local(
            part.full_tensor(),
            mesh,
            placements,
            run_check=False,
            shape=placed.shape,
            stride=placed.stride(),
        )
    return placed.full_tensor()  # type: ignore[no-any-return]
