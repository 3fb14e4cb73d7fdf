"""Calling `fully_shard` on the parts of a module, the inner ones first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from core_fsdp import wrapping

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import OffloadPolicy

    from core_fsdp.options import Sharding


def cut(
    module: nn.Module,
    units: Sequence[nn.Module],
    sharding: Sharding,
    *,
    mesh: DeviceMesh,
    mp_policy: MixedPrecisionPolicy,
    offload_policy: OffloadPolicy,
) -> None:
    """All ranks. Cut the parameters of a module into shards, in place.

    Args:
        module: whose own step or forward is a unit too; with manual optimization its children's are.
        units: parts of it that are gathered by themselves, each before those that contain it.
        sharding: when gathered parameters are freed.
        mesh: over which is sharded.
        mp_policy: formats of what is gathered and reduced.
        offload_policy: where shards rest.
    """
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": mp_policy, "offload_policy": offload_policy}
    is_automatic = getattr(module, "automatic_optimization", True)
    roots = [module] if is_automatic else wrapping.units_for_manual_optimization(module)
    if mp_policy.param_dtype is not None:
        _cut_normalizations(module, options)
    for unit in units:
        if unit not in roots:
            fully_shard(unit, **options, reshard_after_forward=sharding.reshard_after_forward is not False)
    for root in roots:
        fully_shard(root, **options, reshard_after_forward=sharding.reshard_after_forward)


def _cut_normalizations(module: nn.Module, options: dict[str, Any]) -> None:
    """Batch normalization keeps float32: its running statistics and its weights have to be of one format."""
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part is not module and list(part.parameters()):
            fully_shard(part, **{**options, "mp_policy": policy})
