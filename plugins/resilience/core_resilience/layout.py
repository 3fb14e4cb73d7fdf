"""Which ranks have the same parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core.contract import Capability

if TYPE_CHECKING:
    from torch import Tensor, nn

    from core import Strategy

_DATA = "data"
_AXES = {_DATA, "shard"}
"""Axes of core-parallel's mesh along which every rank has a part of each parameter, or a copy of
it.
"""


def replica_groups(strategy: Strategy, module: nn.Module) -> Tensor | None:
    """All ranks, without communication. The ranks that must be alike, a row for each group; None if
    that isn't known.

    Known are strategies that declare `REPLICATED_PARAMETERS`, and meshes of the axes data and
    shard.
    """
    ranks = torch.arange(strategy.world_size)
    if strategy.world_size == 1 or Capability.REPLICATED_PARAMETERS in strategy.capabilities:
        return ranks[None]
    mesh = strategy.device_mesh
    meshes = [
        mesh,
        *(each.device_mesh for each in module.parameters() if hasattr(each, "device_mesh")),
    ]
    if mesh is None or _DATA not in (mesh.mesh_dim_names or ()) or not all(map(_is_known, meshes)):
        return None
    data = (mesh.mesh_dim_names or ()).index(_DATA)
    return ranks.reshape(tuple(mesh.shape)).movedim(data, -1).reshape(-1, mesh.size(data))


def has_all_gradients(strategy: Strategy, module: nn.Module) -> bool:
    """All ranks, without communication. True if each rank has each trained parameter's gradient,
    whole or in part.
    """
    trained: list[Any] = [each for each in module.parameters() if each.requires_grad]
    spread = all(
        hasattr(each, "device_mesh") and each.device_mesh.size() == strategy.world_size
        for each in trained
    )
    return spread or replica_groups(strategy, module) is not None


def num_copies(part: Any, world_size: int) -> int:
    """The ranks that have the same part of a DTensor, one of which every rank has."""
    for dim, placement in enumerate(part.placements):
        if placement.is_shard():
            world_size //= part.device_mesh.size(dim)
    return world_size


def _is_known(mesh: Any) -> bool:
    return all(
        name in _AXES or size == 1
        for name, size in zip(mesh.mesh_dim_names or (), mesh.shape, strict=True)
    )
