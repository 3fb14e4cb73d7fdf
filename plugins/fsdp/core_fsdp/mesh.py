"""The mesh of all processes, one for all stages of a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from core_fsdp.left_groups import forget_left_groups

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

_laid_out: dict[
    tuple[str, tuple[int, ...], tuple[str, ...]], tuple[ProcessGroup | None, DeviceMesh]
] = {}


def lay_out(device_type: str, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    """All ranks. A mesh with these axes: the one of an earlier stage, if this process has stayed in
    the group since.

    Each mesh opens a group for each of its axes, and nothing closes them before the end.
    """
    key = (device_type, shape, names)
    if key not in _laid_out or _laid_out[key][0] is not dist.group.WORLD:
        # joins a group if there is none
        made = init_device_mesh(device_type, shape, mesh_dim_names=names)
        forget_left_groups(made)
        _laid_out[key] = (dist.group.WORLD, made)
    return _laid_out[key][1]


def forget() -> None:
    """All ranks, before the group is left. Forget the meshes: the next ones belong to another
    group.
    """
    _laid_out.clear()
