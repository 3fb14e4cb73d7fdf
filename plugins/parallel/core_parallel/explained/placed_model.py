"""A model that is to lie on the mesh: which rank has which part of each parameter."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from core_parallel.mesh.device_mesh import groups_along
from core_parallel.mesh.sizes import AXES
from core_parallel.tensor.shared_experts import SharedExperts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor
    from torch.distributed.tensor.parallel import ParallelStyle

    from core_parallel.experts.expert_modules import ExpertModule
    from core_parallel.mesh.sizes import Sizes
    from core_parallel.stages.layout import Layout


@dataclass(frozen=True)
class PlacedModel:
    """A whole model, and how it is to be cut.

    Attributes:
        module: the user's, perhaps on meta.
        sizes: of the mesh.
        layout: the stages; None without a pipeline.
        styles: of the layers that are cut over `tensor`, by name.
        experts: that are distributed over `expert`.
    """

    module: nn.Module
    sizes: Sizes
    layout: Layout | None = None
    styles: Mapping[str, ParallelStyle] = field(default_factory=dict)
    experts: Sequence[ExpertModule] = ()

    @cached_property
    def outside(self) -> set[int]:
        """The parameters that no stage has for itself, by identity."""
        return set() if self.layout is None else set(map(id, self.layout.outside()))

    @cached_property
    def _of_experts(self) -> set[int]:
        return {id(parameter) for one in self.experts for parameter in one.parameters.values()}

    @cached_property
    def _cut(self) -> dict[int, int]:
        """The dim along which the ranks of a tensor group have a part each of a parameter, by its
        identity.
        """
        found: dict[int, int] = {}
        for name, style in self.styles.items():
            part = self.module.get_submodule(name)
            for key, parameter in part.named_parameters():
                dim = _cut_dim(part, key, style)
                if dim is not None:
                    found[id(parameter)] = dim
        return found

    def ranks_at(self, position: int) -> list[int]:
        """The ranks in one place of their pipelines."""
        of_pipelines = groups_along(self.sizes.shape, [AXES.index("pipeline")])
        return [ranks[position] for ranks in of_pipelines]

    def parameters_of(self, position: int) -> list[Tensor]:
        """The parameters, whole, of which a rank has at least a part.

        Args:
            position: of the rank in its pipeline.
        """
        owners = {} if self.layout is None else self.layout.owners()
        return [
            one for one in self.module.parameters() if owners.get(id(one), position) == position
        ]

    def kept(self, parameter: Tensor) -> int:
        """The number of elements of a parameter that the first rank of its group has between
        steps.
        """
        key, sizes, shape = id(parameter), self.sizes, list(parameter.shape)
        if key in self._of_experts:
            num_shards = sizes.of_experts[1] if sizes.shard > 1 else 1
            return prod(shape) // (sizes.expert * num_shards)
        if key in self._cut:
            shape[self._cut[key]] //= sizes.tensor
        if sizes.shard > 1 and key not in self.outside:
            shape[0] = -(-shape[0] // sizes.shard)
        return prod(shape)


def _cut_dim(part: nn.Module, key: str, style: ParallelStyle) -> int | None:
    if isinstance(style, SharedExperts):
        return 0
    if isinstance(style, ColwiseParallel):
        return int(isinstance(part, nn.Embedding))
    if isinstance(style, RowwiseParallel) and key == "weight":
        return int(not isinstance(part, nn.Embedding))
    return None
