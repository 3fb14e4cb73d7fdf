"""Tokens on their way to the ranks of their experts and back, around the forward of a module of
experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from core import ModuleError
from core_parallel.communication import collectives
from core_parallel.mesh.placements import cut_axes
from core_parallel.modules.expert_calls import ExpertCalls
from core_parallel.modules.local_parameters import use_local

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

_MARKED = 63
"""Tokens, spread over a call, by which ranks of a tensor group see that they have the same."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The ways of the pairs of a token and one of its experts.

    Attributes:
        order: positions of the pairs that are sent, by the number of the expert.
        sent: number of pairs to each rank of the group.
        received: number of pairs from each rank.
        experts: of the received pairs, counted from this rank's first one.
    """

    order: Tensor
    sent: list[int]
    received: list[int]
    experts: Tensor


def route(numbers: Tensor, num_experts: int, group: Any) -> Routes:
    """All ranks of the group. The ways of pairs whose experts have these numbers; numbers past the
    last go nowhere.
    """
    size = group.size()
    order = numbers.argsort(stable=True)
    counts = torch.bincount(numbers.clamp(max=num_experts), minlength=num_experts + 1)[:num_experts]
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts, group=group)
    by_rank = torch.stack([counts.view(size, -1).sum(1), arriving.view(size, -1).sum(1)])
    sent, received = by_rank.tolist()
    own = torch.arange(num_experts // size, device=numbers.device).repeat(size)
    return Routes(order[: sum(sent)], sent, received, own.repeat_interleave(arriving))


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


class Dispatch:
    """The hooks of one module of experts: its forward sees the tokens of this rank's experts, from
    all ranks.

    Args:
        name: of the module.
        module: has this rank's part of the parameters.
        num_experts: of all ranks.
        mesh: of the experts.
    """

    def __init__(self, name: str, module: nn.Module, num_experts: int, mesh: DeviceMesh) -> None:
        self._name, self._module, self._num_experts = name, module, num_experts
        self._mesh, self._group = mesh, mesh.get_group("expert")
        self._form = ExpertCalls(name, module, num_experts // self._group.size(), num_experts)
        self._is_compared = False
        self._calls: list[tuple[Tensor, Routes]] = []

    def attach(self) -> None:
        """Register the hooks."""
        use_local(self._module, local_part)
        self._module.register_forward_pre_hook(self._begin, with_kwargs=True)
        self._module.register_forward_hook(self._end, always_call=True)

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        tokens, numbers, weights = self._form.begin(args, kwargs)
        group = self._group
        if not self._is_compared:
            self._is_compared = True
            self._refuse_parts(tokens)
        routes = route(numbers.flatten(), self._num_experts, group)
        self._calls.append((numbers, routes))
        rows = tokens[routes.order // numbers.shape[1]]
        rows = collectives.send_rows(rows, routes.sent, routes.received, group)
        factors = collectives.send_rows(
            weights.flatten()[routes.order], routes.sent, routes.received, group
        )
        experts = routes.experts
        if not sum(routes.received):
            # One row that counts nowhere, so that backward goes through the exchange and the
            # parameters here too.
            rows, factors = rows.sum(0, keepdim=True) + 1, factors.sum(0, keepdim=True) + 1
            experts = experts.new_zeros(1)
        return (rows, experts[:, None], factors[:, None]), {}

    def _end(self, module: nn.Module, args: Any, output: Any) -> Any:
        self._form.end()
        numbers, routes = self._calls.pop() if self._calls else (None, None)
        if output is None or numbers is None or routes is None:  # an error is on its way
            return None
        received = output[: sum(routes.received)]
        answers = collectives.send_rows(received, routes.received, routes.sent, self._group)
        pairs = answers.new_zeros(numbers.numel(), *answers.shape[1:]).index_copy(
            0, routes.order, answers
        )
        return pairs.unflatten(0, numbers.shape).sum(1)

    def _refuse_parts(self, tokens: Tensor) -> None:
        """All ranks of a tensor group, which have the same tokens, or gradients of experts would be
        a part's.
        """
        if self._mesh["expert_tensor"].size() == 1:
            return
        group = self._mesh.get_group("expert_tensor")
        # of each token: sums over all are alike by chance
        sizes = tokens.detach().float().abs().flatten(1).sum(1)
        picked = sizes[:: max(1, len(sizes) // _MARKED)][:_MARKED]
        mark = torch.cat(
            [sizes.new_tensor([len(sizes)]), picked, sizes.new_zeros(_MARKED - len(picked))]
        )
        marks = [torch.empty_like(mark) for _ in range(group.size())]
        dist.all_gather(marks, mark, group=group)
        if not torch.allclose(torch.stack(marks), mark, rtol=1e-3):
            raise ModuleError(
                f"{type(self._module).__name__} {self._name!r} was called with other tokens on "
                "each rank of a tensor group. The plan of tensor= must leave them whole before "
                "experts, such as by PrepareModuleInput(desired_input_layouts=Replicate())."
            )
