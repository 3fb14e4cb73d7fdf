"""Experts of a mixture over the ranks of a tensor group, which have the same tokens: each rank
answers for its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from core_parallel.communication import collectives
from core_parallel.following import exchanges
from core_parallel.modules import expert_pairs
from core_parallel.modules.expert_pairs import ExpertPairs, Routes
from core_parallel.modules.own_draws import OwnDraws

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.device_mesh import DeviceMesh


class SharedExperts(ParallelStyle):
    """A module of experts of which each rank has some, whole; the first dim of its parameters is
    the expert.

    Args:
        name: of the module.
    """

    keeps_whole = True

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def check(self, module: nn.Module, size: int) -> None:
        """Refuse experts of which ranks can't have equally many.

        Raises:
            ModuleError: with the numbers.
        """
        parameters = dict(module.named_parameters())
        expert_pairs.refuse_unlike(self._name, parameters)
        count = next(iter(parameters.values())).shape[0]
        expert_pairs.refuse_uneven(self._name, count, "tensor", size)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        count = next(module.parameters()).shape[0]
        for part in module.modules():
            for name, parameter in part.named_parameters(recurse=False):
                placed = distribute_tensor(
                    parameter.detach(), device_mesh, [Shard(0)], src_data_rank=None
                )
                part.register_parameter(
                    name, nn.Parameter(placed, requires_grad=parameter.requires_grad)
                )
        _Share(self._name, module, count, device_mesh).attach(lambda one: one.to_local())
        return module


class _Share(ExpertPairs):
    """Pairs are those of one rank, of the same tokens: answers of all ranks are added up."""

    def __init__(self, name: str, module: nn.Module, count: int, mesh: DeviceMesh) -> None:
        super().__init__(name, module, count // mesh.size(), count)
        self._mesh, self._draws = mesh, OwnDraws(mesh.get_local_rank())

    def attach(self, to_local: Callable[[Any], Tensor]) -> None:
        """Register the hooks; also draw own numbers, since ranks have other numbers of tokens."""
        self._module.register_forward_hook(self._draws.end, always_call=True)
        super().attach(to_local)
        self._module.register_forward_pre_hook(self._draw)

    def _draw(self, module: nn.Module, args: Any) -> None:
        self._draws.begin(module, args[0].device)

    def enter(self, tokens: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """All ranks. The same, whose gradients are added up."""
        return summed_gradient(tokens, self._mesh), summed_gradient(weights, self._mesh)

    def routes(self, numbers: Tensor) -> Routes:
        """The pairs of this rank's experts, which stay here."""
        own = numbers - self._own * self._mesh.get_local_rank()
        places = torch.nonzero((own >= 0) & (own < self._own))[:, 0]
        return Routes(places, own[places], _as_it_is, _as_it_is)

    def leave(self, sums: Tensor) -> Tensor:
        """All ranks. The sums over all ranks."""
        group = self._mesh.get_group()
        exchanges.declare_terms(sums, group)
        return collectives.add_up(sums, group)


def _as_it_is(rows: Tensor) -> Tensor:
    return rows


def summed_gradient(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    """A tensor that all ranks have, and each uses for its part: its gradient is the sum of
    theirs.
    """
    return collectives.enter(tensor, mesh.get_group())
