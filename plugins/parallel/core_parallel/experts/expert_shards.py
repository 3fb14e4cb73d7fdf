"""Each rank's experts in shards, over ranks that have the same ones: units of their own, beside
those of the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Shard

from core import ModuleError
from core_parallel.mesh.placements import own_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh

    from core_parallel.experts.expert_modules import ExpertModule


def check(found: Iterable[ExpertModule], experts: int, size: int) -> None:
    """Refuse experts that can't be cut into equal shards.

    Args:
        found: whole ones.
        experts: over how many ranks they are distributed.
        size: over how many ranks with the same ones they are sharded.

    Raises:
        ModuleError: with the name of a parameter.
    """
    for one in found:
        for name, parameter in one.parameters.items():
            shape = (parameter.shape[0] // experts, *parameter.shape[1:])
            if _dim(shape, size) is None:
                raise ModuleError(
                    f"'{one.name}.{name}' has for the experts of one rank the shape {shape}, and "
                    f"{size} ranks, over which these are sharded, divide none of its dimensions. "
                    "Choose another size of shard."
                )


def cut(modules: Iterable[nn.Module], mesh: DeviceMesh, **options: Any) -> None:
    """All ranks. Shard modules of experts, in place.

    Args:
        modules: have this rank's experts.
        mesh: of the experts.
        options: of `fully_shard`.
    """
    size = mesh["expert_shard"].size()
    axes = mesh["expert_shard"]
    if mesh["expert_copies"].size() > 1:
        axes = mesh["expert_copies", "expert_shard"]

    def place(parameter: Tensor) -> Shard | None:
        dim = _dim(own_part(parameter).shape, size)
        return None if dim is None else Shard(dim)

    for one in modules:
        if not isinstance(one, FSDPModule):
            fully_shard(one, mesh=axes, shard_placement_fn=place, **options)


def _dim(shape: Sequence[int], size: int) -> int | None:
    """The first dim that has equal parts."""
    return next((dim for dim, length in enumerate(shape) if length % size == 0), None)
