"""Groups that this process has left, which torch's DTensors would go on using."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_names: dict[tuple[str, tuple[int, ...]], str] = {}


def forget_left_groups(mesh: DeviceMesh) -> None:
    """Make torch forget what it has computed for equal meshes, if these had groups of other names.

    To torch, meshes of the same ranks and names are equal, and the results of operations that it
    has met lie on the first of them. Its groups may be gone, or have left their names to others,
    whose ranks are not those.
    """
    groups = zip(mesh.mesh_dim_names or (), mesh.get_all_groups(), strict=True)
    names = {
        (axis, tuple(dist.get_process_group_ranks(group))): group.group_name
        for axis, group in groups
    }
    if any(_names.get(key, name) != name for key, name in names.items()):
        _clear()
        cleared: Any = _ClearInBackward
        cleared.apply(torch.zeros(1, device=mesh.device_type, requires_grad=True)).backward()
        _names.clear()
    _names.update(names)


class _ClearInBackward(torch.autograd.Function):
    """The same in the thread that runs backward on a device: each thread has caches of its own."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """The tensor."""
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """The gradient."""
        _clear()
        return gradients[0]


def _clear() -> None:
    propagator: Any = DTensor._op_dispatcher.sharding_propagator
    propagator.propagate_op_sharding.cache.cache_clear()
    # torch 2.9 hasn't a second cache.
    getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", lambda: None)()
