"""Layers cut over the ranks of a tensor group, by plans in transformers' words or torch's styles.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from core import ConfigurationError, ModuleError
from core_parallel.modules import plans
from core_parallel.modules.absent import AbsentTensor
from core_parallel.modules.local_parameters import use_local

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torch.distributed.device_mesh import DeviceMesh


class ReplicatedWithSummedGradient(ParallelStyle):
    """A module that all ranks have whole, and call for different parts: such as a norm of each head."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for part in module.modules():
            for name, parameter in part.named_parameters(recurse=False):
                whole = distribute_tensor(parameter.detach(), device_mesh, [Replicate()], src_data_rank=None)
                part.register_parameter(name, nn.Parameter(whole, requires_grad=parameter.requires_grad))
        use_local(module, _to_local)
        return module


def _to_local(parameter: Any) -> torch.Tensor:
    local: torch.Tensor = parameter.to_local(grad_placements=[Partial()])
    return local


_WORDS: dict[str, Any] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rowwise_rep": lambda: RowwiseParallel(input_layouts=Replicate()),
    "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
    "sequence_parallel": SequenceParallel,
    "replicated_with_grad_allreduce": ReplicatedWithSummedGradient,
}
_EXAMPLE = '{"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}'


def plan(
    module: nn.Module, given: Mapping[str, Any] | None, size: int, experts: Collection[str] = ()
) -> dict[str, ParallelStyle]:
    """The styles in which layers of a module are cut, by their names; none if it is cut already.

    Args:
        module: the user's, whole.
        given: the strategy's plan; None asks the module and its config.
        size: of the tensor group.
        experts: names of modules that are distributed otherwise: what a plan says of them is left out.

    Raises:
        ModuleError: there is no plan, a layer can't be cut so, or it shares a weight with another.
        ConfigurationError: a plan names what isn't there.
    """
    if any(isinstance(one, DTensor) for one in module.parameters()):
        return {}
    planned = plans.find(module, given, "tensor_parallel_plan", "base_model_tp_plan", "tensor_plan", example=_EXAMPLE)
    planned = {
        name: word for name, word in planned.items() if not any(f"{name}.".startswith(f"{one}.") for one in experts)
    }
    _refuse_tied(module, planned)
    styles = {name: _style(name, word) for name, word in planned.items()}
    for name, style in styles.items():
        _check_size(name, module.get_submodule(name), style, size)
    return styles


def cut(module: nn.Module, styles: Mapping[str, ParallelStyle], mesh: DeviceMesh) -> None:
    """All ranks of a tensor group, with the same values. Cut layers in place; not those that another stage has.

    Args:
        module: the user's.
        styles: by names in it, see `plan`.
        mesh: the axis `tensor`.
    """
    for name, style in styles.items():
        part = module.get_submodule(name)
        if not any(isinstance(one, AbsentTensor) for one in part.parameters()):
            parallelize_module(part, mesh, style, src_data_rank=None)


def _style(name: str, word: Any) -> ParallelStyle:
    if isinstance(word, ParallelStyle):
        return word
    if word not in _WORDS:
        raise ConfigurationError(
            f"The plan for {name!r} is {word!r}; expected one of torch's styles, or one of "
            f"{', '.join(map(repr, _WORDS))}. Experts are distributed by expert=."
        )
    style: ParallelStyle = _WORDS[word]()
    return style


def _check_size(name: str, part: nn.Module, style: ParallelStyle, size: int) -> None:
    """Refuse what the ranks can't have equal parts of."""
    weight = getattr(part, "weight", None)
    if not isinstance(weight, torch.Tensor) or not isinstance(style, ColwiseParallel | RowwiseParallel):
        return
    dim = int(isinstance(style, RowwiseParallel) != isinstance(part, nn.Embedding))
    if weight.shape[dim] % size:
        raise ModuleError(
            f"{name!r} has {weight.shape[dim]} {'columns' if dim else 'rows'}, and tensor={size} doesn't divide that. "
            "Choose a size that does, or leave the layer out of the plan."
        )


def _refuse_tied(module: nn.Module, planned: Mapping[str, Any]) -> None:
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    for shared in names.values():
        if len(shared) > 1 and any(name.rpartition(".")[0] in planned for name in shared):
            raise ModuleError(
                f"{shared[0]!r} and {shared[1]!r} share a weight, and the plan cuts one of them: they would go apart. "
                "Leave both out of the plan, or untie them."
            )
