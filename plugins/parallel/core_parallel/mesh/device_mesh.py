"""The mesh of all processes, and groups of ranks over one or more of its axes."""

from __future__ import annotations

from functools import cache
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


def lay_out(device_type: str, sizes: Sizes) -> Mesh:
    """All ranks. A mesh of these sizes: the one of an earlier stage, if this process has stayed in
    the group since.
    """
    return _laid_out(dist.group.WORLD, device_type, sizes)


@cache
def _laid_out(world: object, device_type: str, sizes: Sizes) -> Mesh:
    return Mesh(device_type, sizes)


def forget() -> None:
    """All ranks, before the group is left. Forget the meshes: the next ones belong to another
    group.
    """
    _laid_out.cache_clear()


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
        forget_left_groups(self.axes)
        self.experts: DeviceMesh | None = None
        if sizes.expert > 1:  # neighbours along data, shard and context have different ones
            shape = (sizes.pipeline, *sizes.of_experts, sizes.tensor)
            self.experts = init_device_mesh(device_type, shape, mesh_dim_names=EXPERT_AXES)
            forget_left_groups(self.experts)
        self._groups: dict[tuple[str, ...], ProcessGroup] = {}

    def group(self, *names: str) -> ProcessGroup | None:
        """All ranks, in one order. The group of the ranks that differ along these axes only; None
        if it is one rank.
        """
        names = tuple(name for name in AXES if name in names and getattr(self.sizes, name) > 1)
        if not names:
            return None
        if names not in self._groups:
            rows = groups_along(self.sizes.shape, [AXES.index(name) for name in names])
            self._groups[names] = dist.new_subgroups_by_enumeration(rows)[0]
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
