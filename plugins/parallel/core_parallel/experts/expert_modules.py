"""Experts of mixture-of-experts models, distributed over the ranks of an expert group.

Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding",
2020.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from core import ModuleError
from core_parallel.communication import averages
from core_parallel.experts.dispatch import Dispatch, local_part
from core_parallel.mesh.placements import cut_axes
from core_parallel.mesh.sizes import EXPERT_AXES
from core_parallel.modules import expert_pairs, plans
from core_parallel.modules.absent import is_absent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh

_OF_MODULES = (None, "ep_dispatch_experts")
_OF_PARAMETERS = (None, "grouped_gemm")
_EXPERTS = frozenset(("expert", "expert_shard"))
_EXAMPLE = '["blocks.*.experts"]'


@dataclass(frozen=True)
class ExpertModule:
    """One module whose parameters belong to experts: the first dim of each is the number of the
    expert.

    Attributes:
        name: of the module.
        module: is called with tokens, the numbers of their experts, and weights.
        parameters: those of the experts, by name in the module. Others are common to all experts.
    """

    name: str
    module: nn.Module
    parameters: Mapping[str, Tensor]

    @property
    def count(self) -> int:
        """Number of experts."""
        return next(iter(self.parameters.values())).shape[0]


def find(module: nn.Module, given: Any = None) -> list[ExpertModule]:
    """The experts of a model: by its plan, or those that are recognized.

    Args:
        module: the user's.
        given: names of modules whose parameters are experts, perhaps with words as in transformers'
            plans. None asks the model, and its config; and else recognizes them. An empty plan says
            that there are none.

    Raises:
        ModuleError: there are none, or their parameters don't fit together.
        ConfigurationError: a plan names what isn't there.
    """
    try:
        planned = plans.find(
            module,
            given,
            "expert_parallel_plan",
            "base_model_ep_plan",
            "expert_plan",
            example=_EXAMPLE,
        )
    except ModuleError:
        planned = dict.fromkeys(_recognized(module))
    else:
        if not planned:  # an empty plan
            return []
    modules = dict(module.named_modules())
    names = [name for name, word in planned.items() if name in modules and word in _OF_MODULES]
    if not names:
        raise ModuleError(
            f"{type(module).__name__} has no experts that are known: neither a plan "
            f"(expert_plan={_EXAMPLE} of the strategy, expert_parallel_plan of the model, "
            "base_model_ep_plan of its config) names any, nor is there a module with num_experts, "
            "parameters whose first dim that is, and a forward of tokens, numbers of experts and "
            "weights. core_parallel.ExpertList makes one of a list of modules."
        )
    return [
        ExpertModule(name, modules[name], _parameters_of(name, modules[name], planned))
        for name in names
    ]


def _recognized(module: nn.Module) -> Iterator[str]:
    for name, part in module.named_modules():
        count = getattr(part, "num_experts", None)
        shapes = [one.shape for one in part.parameters()]
        if isinstance(count, int) and any(len(shape) > 2 for shape in shapes):
            fits = all(len(shape) and shape[0] == count for shape in shapes)
            if fits and len(signature(part.forward).parameters) == 3:
                yield name


def _parameters_of(
    name: str, module: nn.Module, planned: Mapping[str, Any]
) -> Mapping[str, Tensor]:
    own = dict(module.named_parameters())
    named = {
        key: one for key, one in own.items() if planned.get(f"{name}.{key}", "") in _OF_PARAMETERS
    }
    chosen = named or own
    expert_pairs.refuse_unlike(name, chosen)
    return chosen


def plan(module: nn.Module, given: Any, mesh: DeviceMesh) -> list[ExpertModule]:
    """The experts that are to be distributed; none if they are already.

    Args:
        module: the user's.
        given: see `find`.
        mesh: of the experts.

    Raises:
        ModuleError: there are no experts, or they can't be distributed.
        ConfigurationError: a plan names what isn't there.
    """
    already = [one for one in module.parameters() if is_expert(one)]
    if already:
        _refuse_other(already[0], mesh)
        return []
    return divided(module, given, mesh["expert"].size())


def divided(module: nn.Module, given: Any, size: int) -> list[ExpertModule]:
    """The experts of a whole module, of which as many ranks can have equally many; see `plan`."""
    found = find(module, given)
    _refuse_tied(module, found)
    for experts in found:
        expert_pairs.refuse_uneven(experts.name, experts.count, "expert", size)
    return found


def check_owners(found: Iterable[ExpertModule], owners: Mapping[int, int]) -> None:
    """Refuse experts that no one stage has.

    Args:
        found: whole ones.
        owners: position of the rank that has a tensor, by its identity.

    Raises:
        ModuleError: with their name.
    """
    for experts in found:
        if any(id(one) not in owners for one in experts.parameters.values()):
            raise ModuleError(
                f"The experts {experts.name!r} are in no part of the pipeline, so that every stage "
                "would have them. Put the module that calls them among the parts."
            )


def distribute(found: Iterable[ExpertModule], mesh: DeviceMesh, *, in_units: bool) -> None:
    """All ranks, with the same values. Keep this rank's experts, in place, and send tokens to those
    of the others.

    Args:
        found: see `plan`. What another stage has by now stays as it is.
        mesh: of the experts.
        in_units: they will be units of `fully_shard`, which adds copies and shards.
    """
    for experts in found:
        own = {name: experts.module.get_parameter(name) for name in experts.parameters}
        if any(map(is_absent, own.values())):
            continue
        for name, parameter in list(experts.module.named_parameters()):
            owner, _, last = name.rpartition(".")
            if name in own or in_units:
                placement: Placement = Replicate()
                if name in own:
                    placement = Shard(0)
                placed = _placed(parameter, mesh, placement, has_copies=not in_units)
                part = nn.Parameter(placed, requires_grad=parameter.requires_grad)
                experts.module.get_submodule(owner).register_parameter(last, part)
        Dispatch(experts.name, experts.module, experts.count, mesh).attach(local_part)


def _placed(
    parameter: Tensor, mesh: DeviceMesh, placement: Placement, *, has_copies: bool
) -> DTensor:
    """This rank's experts, or what is common to all, over all axes along which there are several
    ranks.

    Checkpoints see from these who has the same.
    """
    own = parameter.detach()
    if placement.is_shard():
        own = own.chunk(mesh["expert"].size())[mesh["expert"].get_local_rank()]
    axes = {"expert": placement}
    if has_copies and mesh["expert_copies"].size() > 1:
        axes = {"expert_copies": Replicate(), **axes}
    if mesh["expert_tensor"].size() > 1:
        axes["expert_tensor"] = Replicate()
    return DTensor.from_local(own.clone(), mesh[tuple(axes)], [*axes.values()], run_check=False)


def _refuse_tied(module: nn.Module, found: Sequence[ExpertModule]) -> None:
    parts = {id(one) for experts in found for one in experts.parameters.values()}
    seen: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first = seen.setdefault(id(parameter), name)
        if id(parameter) in parts and first != name:
            raise ModuleError(
                f"{first!r} and {name!r} share a parameter of experts: they would go apart when it "
                "is distributed. Untie them."
            )


def _refuse_other(parameter: Any, mesh: DeviceMesh) -> None:
    before, now = (
        dist.get_process_group_ranks(one.get_group("expert"))
        for one in (parameter.device_mesh, mesh)
    )
    if before != now:
        raise ModuleError(
            f"Its experts are distributed already, over the ranks {before}, and not over {now}. "
            "Make the module anew, and load a checkpoint into it."
        )


def is_expert(parameter: Tensor) -> bool:
    """True if a parameter is this rank's part of distributed experts."""
    return "expert" in cut_axes(parameter)


def average(parameters: Iterable[Tensor], mesh: DeviceMesh) -> list[Tensor]:
    """All ranks of a stage. Average gradients of experts in place, over the ranks that have the
    same part of them.

    Args:
        parameters: the same ones in the same order on all ranks.
        mesh: of the experts.

    Returns:
        The other parameters.
    """
    # By the axes over which it is cut; fully_shard averages experts in shards over copies itself.
    by_axes: dict[frozenset[str], list[Tensor]] = defaultdict(list)
    for one in parameters:
        by_axes[_EXPERTS.intersection(cut_axes(one))].append(one)
    for cut, axis in (("expert", "expert_copies"), ("expert_shard", "expert")):
        if mesh[axis].size() > 1:
            averages.average(by_axes[frozenset([cut])], mesh.get_group(axis))
    return by_axes[frozenset()]


def coordinates(mesh: DeviceMesh | None) -> dict[str, int]:
    """This rank's places along the axes over which experts lie, by their names; none without
    experts.
    """
    if mesh is None:
        return {}
    places = dict(zip(EXPERT_AXES, mesh.get_coordinate() or (), strict=True))
    del places["expert_pipeline"]
    return places


def copy_to_others(tensors: Iterable[Tensor], mesh: DeviceMesh) -> None:
    """All ranks of a stage. Copy what the first rank has read to those that have the same part of
    experts.

    Args:
        tensors: the same ones in the same order on all ranks.
        mesh: of the experts.
    """
    placed = [one for one in tensors if _EXPERTS.intersection(cut_axes(one))]
    for axis in ("expert_copies", "expert_shard", "expert", "expert_tensor"):
        if mesh[axis].size() > 1:
            averages.copy_from_first(
                [one for one in placed if axis not in cut_axes(one)], mesh.get_group(axis)
            )
