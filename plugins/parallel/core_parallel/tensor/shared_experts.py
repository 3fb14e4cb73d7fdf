"""Experts of a mixture over the ranks of a tensor group, which have the same tokens: each rank
answers for its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from core import ModuleError
from core_parallel.modules.expert_calls import ExpertCalls
from core_parallel.modules.local_parameters import use_local
from core_parallel.modules.own_draws import OwnDraws

if TYPE_CHECKING:
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
        shapes = {name: tuple(one.shape) for name, one in module.named_parameters()}
        if len({shape[:1] for shape in shapes.values()}) != 1 or () in shapes.values():
            shown = (
                ", ".join(f"{name!r} of shape {shape}" for name, shape in shapes.items())
                or "nothing"
            )
            raise ModuleError(
                f"The parameters of the experts {self._name!r} must have the number of experts as "
                f"their first dim, and it has {shown}. Leave it out of the plan."
            )
        if (count := next(iter(shapes.values()))[0]) % size:
            raise ModuleError(
                f"{self._name!r} has {count} experts, and tensor={size} doesn't divide that. "
                "Choose a size that does, or leave the experts out of the plan."
            )

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
        use_local(module, _to_local)
        _Share(self._name, module, count, device_mesh).attach()
        return module


def _to_local(parameter: Any) -> Tensor:
    local: Tensor = parameter.to_local()
    return local


class _Share:
    """The hooks of one module: its forward sees the pairs of a token and one of this rank's
    experts.
    """

    def __init__(self, name: str, module: nn.Module, count: int, mesh: DeviceMesh) -> None:
        own = count // mesh.size()
        self._module, self._mesh, self._own = module, mesh, own
        self._first = own * mesh.get_local_rank()
        self._form = ExpertCalls(name, module, own, count)
        self._calls: list[tuple[Tensor, Tensor]] = []
        self._draws = OwnDraws(mesh.get_local_rank())

    def attach(self) -> None:
        """Register the hooks."""
        self._module.register_forward_pre_hook(self._begin, with_kwargs=True)
        self._module.register_forward_hook(self._end, always_call=True)

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        tokens, numbers, weights = self._form.begin(args, kwargs)
        tokens, weights = (summed_gradient(one, self._mesh) for one in (tokens, weights))
        own = numbers.flatten() - self._first
        places = torch.nonzero((own >= 0) & (own < self._own))[:, 0]
        self._calls.append((numbers, places))
        rows, experts, factors = (
            tokens[places // numbers.shape[1]],
            own[places],
            weights.flatten()[places],
        )
        if not len(places):
            # One row that counts nowhere, so that backward goes through the exchange and the
            # parameters here too.
            rows, factors = rows.sum(0, keepdim=True) + 1, factors.sum(0, keepdim=True) + 1
            experts = experts.new_zeros(1)
        self._draws.begin(module, rows.device)  # also since ranks have other numbers of tokens
        return (rows, experts[:, None], factors[:, None]), {}

    def _end(self, module: nn.Module, args: Any, output: Any) -> Any:
        self._draws.end()
        self._form.end()
        numbers, places = self._calls.pop() if self._calls else (None, None)
        if output is None or numbers is None or places is None:  # an error is on its way
            return None
        answers = output[: len(places)]
        pairs = answers.new_zeros(numbers.numel(), *answers.shape[1:]).index_copy(
            0, places, answers
        )
        return _added_up(pairs.unflatten(0, numbers.shape).sum(1), self._mesh)


def summed_gradient(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    """A tensor that all ranks have, and each uses for its part: its gradient is the sum of
    theirs.
    """
    placed = DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
    local: Tensor = placed.to_local(grad_placements=[Partial()])
    return local


def _added_up(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    placed = DTensor.from_local(tensor, mesh, [Partial()], run_check=False)
    local: Tensor = placed.redistribute(placements=[Replicate()]).to_local()
    return local
