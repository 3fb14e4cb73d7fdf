"""The mesh of all processes, and groups of ranks over one or more of its axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from core_parallel.sizes import AXES

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from core_parallel.sizes import Sizes


class Mesh:
    """One mesh with the axes of `AXES`; and a second view of it, in which `expert` lies across three of them.

    The ranks of data, shard and context, taken as one row, are `replica` times `expert`: ranks that follow each other
    have different experts.

    Attributes:
        sizes: of the axes.
        axes: torch's mesh.
    """

    def __init__(self, device_type: str, sizes: Sizes) -> None:
        self.sizes = sizes
        self.axes: DeviceMesh = init_device_mesh(device_type, sizes.shape, mesh_dim_names=AXES)
        self._device_type = device_type
        self._experts: DeviceMesh | None = None
        self._groups: dict[tuple[str, ...], ProcessGroup | None] = {}

    def group(self, *names: str) -> ProcessGroup | None:
        """All ranks, in one order. The group of the ranks that differ along these axes only; None if it is one rank."""
        if names not in self._groups:
            rows = self._rows(names)
            is_alone = len(rows[0]) == 1
            self._groups[names] = None if is_alone else dist.new_subgroups_by_enumeration(rows)[0]
        return self._groups[names]

    @property
    def experts(self) -> DeviceMesh:
        """All ranks. The axis `expert`, over which experts are distributed."""
        if self._experts is None:
            one, row = self.sizes, self.sizes.data * self.sizes.shard * self.sizes.context
            shape = (one.pipeline, row // one.expert, one.expert, one.tensor)
            names = ("pipeline", "replica", "expert", "tensor")
            self._experts = init_device_mesh(self._device_type, shape, mesh_dim_names=names)
        return self._experts["expert"]

    def _rows(self, names: tuple[str, ...]) -> list[list[int]]:
        if "replica" in names or "expert" in names:
            one, row = self.sizes, self.sizes.data * self.sizes.shard * self.sizes.context
            axes: tuple[str, ...] = ("pipeline", "replica", "expert", "tensor")
            shape: tuple[int, ...] = (one.pipeline, row // one.expert, one.expert, one.tensor)
        else:
            axes, shape = AXES, self.sizes.shape
        kept = [axes.index(name) for name in names]
        others = [position for position in range(len(axes)) if position not in kept]
        ranks = torch.arange(dist.get_world_size()).reshape(shape).permute(*others, *kept)
        size = max(1, torch.Size([shape[position] for position in kept]).numel())
        rows: list[list[int]] = ranks.reshape(-1, size).tolist()
        return rows
