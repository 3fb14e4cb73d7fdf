"""The mesh of all processes, and groups of ranks over one or more of its axes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from core_fsdp import forget_left_groups
from core_parallel.mesh.sizes import AXES, EXPERT_AXES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from core_parallel.mesh.sizes import Sizes


_laid_out: dict[tuple[str, Sizes], tuple[object, Mesh]] = {}


def lay_out(device_type: str, sizes: Sizes) -> Mesh:
    """All ranks. A mesh of these sizes: the one of an earlier stage, if this process has stayed in
    the group since.
    """
    key = (device_type, sizes)
    if key not in _laid_out or _laid_out[key][0] is not dist.group.WORLD:
        _laid_out[key] = (dist.group.WORLD, Mesh(device_type, sizes))
    return _laid_out[key][1]


def forget() -> None:
    """All ranks, before the group is left. Forget the meshes: the next ones belong to another
    group.
    """
    _laid_out.clear()


class Mesh:
    """One mesh with the axes of `AXES`.

    Attributes:
        sizes: of the axes.
        axes: torch's mesh.
        experts: the mesh over which experts are distributed; None if they aren't.
    """

    def __init__(self, device_type: str, sizes: Sizes) -> None:
        self.sizes = sizes
        self.axes: DeviceMesh = init_device_mesh(device_type, sizes.shape, mesh_dim_names=AXES)
        self.experts = _lay_out_experts(device_type, sizes) if sizes.expert > 1 else None
        for made in filter(None, (self.axes, self.experts)):
            forget_left_groups(made)
        self._groups: dict[tuple[str, ...], ProcessGroup | None] = {}

    def group(self, *names: str) -> ProcessGroup | None:
        """All ranks, in one order. The group of the ranks that differ along these axes only; None
        if it is one rank.
        """
        names = tuple(name for name in AXES if name in names and getattr(self.sizes, name) > 1)
        if names not in self._groups:
            rows = groups_along(self.sizes.shape, [AXES.index(name) for name in names])
            self._groups[names] = dist.new_subgroups_by_enumeration(rows)[0] if names else None
        return self._groups[names]


def groups_along(shape: Sequence[int], axes: Sequence[int]) -> list[list[int]]:
    """The ranks that differ along some axes of a mesh only, for each place along the others.

    Args:
        shape: of the mesh.
        axes: positions in the shape.
    """
    others = [axis for axis in range(len(shape)) if axis not in axes]
    ranks = torch.arange(prod(shape)).reshape(*shape).permute(*others, *axes)
    rows: list[list[int]] = ranks.reshape(-1, prod(shape[axis] for axis in axes)).tolist()
    return rows


def _lay_out_experts(device_type: str, sizes: Sizes) -> DeviceMesh:
    """All ranks. The mesh of the experts: neighbours along data, shard and context have different
    ones.
    """
    shape = (sizes.pipeline, *sizes.of_experts, sizes.tensor)
    return init_device_mesh(device_type, shape, mesh_dim_names=EXPERT_AXES)
