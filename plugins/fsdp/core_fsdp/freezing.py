"""Parameters that are frozen before their layer is cut over devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.modules.module import register_module_parameter_registration_hook

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh
    from torch.utils.hooks import RemovableHandle


def keep_frozen(mesh: DeviceMesh) -> list[RemovableHandle]:
    """All ranks. Keep frozen parameters frozen when they are sharded, which torch 2.9's styles
    forget.

    Args:
        mesh: of one axis.

    Returns:
        The hooks; none where torch's styles keep it in mind.
    """
    # Tried on a small layer, which is more certain than torch's version.
    layer = nn.Linear(1, 1, device="meta").requires_grad_(False)
    parallelize_module(layer, mesh, ColwiseParallel(), src_data_rank=None)
    return (
        [register_module_parameter_registration_hook(_freeze)] if layer.weight.requires_grad else []
    )


def _freeze(module: nn.Module, name: str, parameter: Tensor) -> None:
    before = module._parameters.get(name)
    is_cut_now = isinstance(parameter, DTensor) and not isinstance(before, DTensor)
    if is_cut_now and before is not None and not before.requires_grad:
        parameter.requires_grad_(False)
