"""The rows about the mesh: its sizes, the groups along each axis, and the place of each rank."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

from core_parallel.explained.texts import Row, listed
from core_parallel.mesh.device_mesh import groups_along
from core_parallel.mesh.sizes import AXES, EXPERT_AXES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from core_parallel.mesh.sizes import Sizes

_MOST_RANKS = 16
_DOES = {
    "pipeline": "ranks of a group have one stage after the other, and the same batches",
    "data": "ranks of a group have copies, and batches of their own; gradients are averaged",
    "shard": "ranks of a group have a shard of each parameter, and batches of their own",
    "context": "ranks of a group have a part of each sequence of the same batches",
    "tensor": "ranks of a group have a part of each cut layer, and the same batches",
}


def rows(sizes: Sizes, owners: Sequence[int]) -> Iterator[Row]:
    """The rows.

    Args:
        sizes: of the axes.
        owners: position in its pipeline of the rank that has a stage, for each stage.
    """
    used = [axis for axis in AXES if getattr(sizes, axis) > 1]
    shown = ", ".join(f"{axis}={getattr(sizes, axis)}" for axis in used) or "data=1"
    world_size = prod(sizes.shape)
    why = f"{world_size} processes; ranks follow each other along the last of these axes"
    yield "mesh", shown, why
    for axis in used:
        yield f"{axis} groups", _listed_along(sizes.shape, AXES.index(axis)), _DOES[axis]
    if sizes.expert > 1:
        shape = (sizes.pipeline, *sizes.of_experts, sizes.tensor)
        why = "ranks of a group have other experts each, and send tokens to each other"
        yield "expert groups", _listed_along(shape, EXPERT_AXES.index("expert")), why
    for rank in range(world_size):
        if world_size <= _MOST_RANKS or rank in (0, 1, 2, 3, world_size - 1):
            yield f"rank {rank}", *_place(rank, sizes, used, owners)


def _listed_along(shape: Sequence[int], axis: int) -> str:
    """The groups of ranks along an axis of a mesh."""
    groups = groups_along(shape, [axis])
    return listed(listed(map(str, ranks), 8).replace(",", "") for ranks in groups)


def _place(rank: int, sizes: Sizes, used: Iterable[str], owners: Sequence[int]) -> tuple[str, str]:
    places = torch.unravel_index(torch.tensor(rank), sizes.shape)
    place = {axis: int(one) for axis, one in zip(AXES, places, strict=True)}
    share = place["data"] * sizes.shard + place["shard"]
    does = f"share {share} of {sizes.data * sizes.shard} of the data, from 0"
    if sizes.pipeline > 1:
        stages = [str(stage) for stage, owner in enumerate(owners) if owner == place["pipeline"]]
        does = f"stage{'s' * (len(stages) > 1)} {' and '.join(stages)}; {does}"
    return ", ".join(f"{axis}={place[axis]}" for axis in used) or "all of it", does
