"""Tokens on their way to the ranks of their experts and back, around the forward of a module of
experts.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from core import ModuleError
from core_parallel.communication import collectives
from core_parallel.mesh.placements import cut_axes
from core_parallel.modules.expert_pairs import ExpertPairs, Routes

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

_MARKED = 63
"""Tokens, spread over a call, by which ranks of a tensor group see that they have the same."""


def local_part(parameter: DTensor) -> Tensor:
    """This rank's experts, as a plain tensor with which a forward computes.

    The losses of all ranks of an expert group give gradients to it, and their sum over the number
    of ranks is what an average over these ranks is to what they have in common. What is common to
    all experts is averaged later.
    """
    local: Tensor = parameter.to_local()
    if "expert" in cut_axes(parameter) and local.requires_grad and torch.is_grad_enabled():
        mesh = parameter.device_mesh
        size = mesh.size((mesh.mesh_dim_names or ()).index("expert"))
        local.register_hook(lambda gradient: gradient / size)
    return local


class Dispatch(ExpertPairs):
    """Pairs travel to the ranks of their experts and back: a forward sees tokens of all ranks.

    Args:
        name: of the module.
        module: has this rank's part of the parameters.
        num_experts: of all ranks.
        mesh: of the experts.
    """

    def __init__(self, name: str, module: nn.Module, num_experts: int, mesh: DeviceMesh) -> None:
        self._mesh, self._group = mesh, mesh.get_group("expert")
        super().__init__(name, module, num_experts // self._group.size(), num_experts)
        self._is_compared = False

    def enter(self, tokens: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """All ranks. The same, which are those of the other ranks of a tensor group."""
        self._refuse_parts(tokens)
        return tokens, weights

    def routes(self, numbers: Tensor) -> Routes:
        """All ranks. The ways to other ranks; numbers past the last expert go nowhere."""
        group, number = self._group, self._all
        order = numbers.argsort(stable=True)
        counts = torch.bincount(numbers.clamp(max=number), minlength=number + 1)[:number]
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=group)
        by_rank = torch.stack([one.view(group.size(), -1).sum(1) for one in (counts, arriving)])
        sent, received = by_rank.tolist()
        own = torch.arange(self._own, device=numbers.device).repeat(group.size())
        return Routes(
            order[: sum(sent)],
            own.repeat_interleave(arriving),
            partial(collectives.send_rows, sent=sent, received=received, group=group),
            partial(collectives.send_rows, sent=received, received=sent, group=group),
        )

    def _refuse_parts(self, tokens: Tensor) -> None:
        """All ranks of a tensor group, which have the same tokens, or gradients of experts would be
        a part's.
        """
        if self._is_compared or self._mesh["expert_tensor"].size() == 1:
            return
        self._is_compared = True
        group = self._mesh.get_group("expert_tensor")
        # of each token: sums over all are alike by chance
        sizes = tokens.detach().float().abs().flatten(1).sum(1)
        picked = sizes[:: max(1, len(sizes) // _MARKED)][:_MARKED]
        mark = sizes.new_zeros(_MARKED + 1)
        mark[0], mark[1 : len(picked) + 1] = len(sizes), picked
        least, largest = mark.clone(), mark.clone()
        dist.all_reduce(least, dist.ReduceOp.MIN, group=group)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        if not torch.allclose(least, largest, rtol=1e-3):
            raise ModuleError(
                f"{type(self._module).__name__} {self._name!r} was called with other tokens on "
                "each rank of a tensor group. The plan of tensor= must leave them whole before "
                "experts, such as by PrepareModuleInput(desired_input_layouts=Replicate())."
            )
