"""Layers cut over the ranks of a tensor group, by plans in transformers' words or torch's styles.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from core import ConfigurationError, ModuleError
from core_fsdp.forward import refuse_second_derivatives
from core_parallel.communication import collectives
from core_parallel.modules import plans
from core_parallel.modules.absent import AbsentTensor
from core_parallel.modules.local_parameters import use_local
from core_parallel.tensor import adapters
from core_parallel.tensor.shared_experts import SharedExperts
from core_parallel.tensor.vocabulary import ColwiseLogits

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from torch.distributed.device_mesh import DeviceMesh

_log = logging.getLogger(__name__)


class ReplicatedWithSummedGradient(ParallelStyle):
    """A module that all ranks have whole, and call for different parts: such as a norm of each
    head.
    """

    keeps_whole = True

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for part in module.modules():
            for name, parameter in part.named_parameters(recurse=False):
                whole = distribute_tensor(
                    parameter.detach(), device_mesh, [Replicate()], src_data_rank=None
                )
                part.register_parameter(
                    name, nn.Parameter(whole, requires_grad=parameter.requires_grad)
                )
        use_local(module, _to_local)
        return module


class LatentKeys(ParallelStyle):
    """A layer that all ranks have whole, and whose last columns each uses for its own heads: their
    rotary keys.

    Args:
        width: number of these columns.
    """

    keeps_whole = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def enter(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
            return collectives.enter_columns(output, self._width, device_mesh.get_group())

        module.register_forward_hook(enter)
        return module


def _to_local(parameter: Any) -> torch.Tensor:
    local: torch.Tensor = parameter.to_local(grad_placements=[Partial()])
    return local


_WORDS: dict[str, Any] = {
    "colwise": ColwiseParallel,
    "colwise_logits": ColwiseLogits,
    "rowwise": RowwiseParallel,
    "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rowwise_rep": lambda: RowwiseParallel(input_layouts=Replicate()),
    "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_colwise": lambda: ColwiseParallel(output_layouts=Replicate()),
    "sequence_parallel": SequenceParallel,
    "replicated_with_grad_allreduce": ReplicatedWithSummedGradient,
}
_GATHERED, _LOGITS = ("colwise_gather_output", "colwise_rep"), "colwise_logits"
_ATTRIBUTE = "tensor_parallel_plan"
_OF_EXPERTS, _OF_LATENT, _WHOLE = "moe_tp_experts", "mla_kv_a_proj", "replicate"
_WITHOUT_SECOND = (
    "torch's exchanges of layers that are cut under tensor= have no second derivative: numbers "
    "would be wrong. Leave the layers that it goes through out of the plan, or leave tensor out."
)
_LEFT_WHOLE = (
    "%r has %d words, which tensor=%d doesn't divide: every rank has it whole. After "
    "model.resize_token_embeddings(pad_to_multiple_of=%d) it is cut."
)
_MIXED = "mixed torch.Tensor and DTensor"
_BESIDE = (
    "A weight of a layer that is cut under tensor= was used beside its layer ({}), and each rank "
    "has a part of it. Call the layer, or use weight.full_tensor(). A tensor_plan that doesn't "
    "name the layer leaves it whole."
)


def plan(
    module: nn.Module,
    given: Mapping[str, Any] | None,
    size: int,
    experts: Collection[str] = (),
    *,
    keeps_logits: bool = False,
    joins_first: bool = False,
) -> dict[str, ParallelStyle]:
    """The styles in which layers of a module are cut, by their names; none if it is cut already.

    Args:
        module: the user's, whole.
        given: the strategy's plan; None asks the module and its config.
        size: of the tensor group.
        experts: names of modules that are distributed otherwise: what a plan says of them is left
            out.
        keeps_logits: what else would be gathered from columns stays in parts, also of a head that
            the plan of a class names.
        joins_first: logits are whole as soon as a head gives them, and not only where the model
            returns them: it is called in parts.

    Raises:
        ModuleError: there is no plan, a layer can't be cut so, or it shares a weight with another.
        ConfigurationError: a plan names what isn't there.
    """
    if any(isinstance(one, DTensor) for one in module.parameters()):
        return {}
    planned = plans.find(
        module, given, _ATTRIBUTE, "base_model_tp_plan", "tensor_plan", example=_example
    )
    if not keeps_logits and given is None and not plans.is_declared(module, _ATTRIBUTE):
        planned = {**_heads(module, size, joins_first=joins_first), **planned}
    if keeps_logits:
        of_classes = {name: word for name, (word, _) in plans.of_classes(module).items()}
        planned = {**of_classes, **planned}
        planned |= {name: _LOGITS for name, word in planned.items() if word in _GATHERED}
        if _LOGITS not in planned.values():
            raise ConfigurationError(
                f"local_loss='tensor' is about a layer whose columns are gathered, and the plan of "
                f"{type(module).__name__} has none. Give its head 'colwise_gather_output' in the "
                "plan, or leave local_loss out."
            )
    shared = [name for name, word in planned.items() if word == _OF_EXPERTS]
    planned = {
        name: word
        for name, word in planned.items()
        if word != _WHOLE
        and not any(f"{name}.".startswith(f"{one}.") for one in experts)
        # its parameters, which ranks have expert by expert
        and not any(name.startswith(f"{one}.") for one in shared)
    }
    _refuse_parameters(module, planned)
    planned = adapters.inside(module, planned)
    styles = {name: _style(module, name, word) for name, word in planned.items()}
    _refuse_tied(module, styles)
    for name, style in styles.items():
        _check_size(name, module.get_submodule(name), style, size)
        _check_heads(name, module, style, size)
    return styles


def cut(module: nn.Module, styles: Mapping[str, ParallelStyle], mesh: DeviceMesh) -> None:
    """All ranks of a tensor group, with the same values. Cut layers in place; not those that
    another stage has.

    Args:
        module: the user's.
        styles: by names in it, see `plan`.
        mesh: the axis `tensor`.
    """
    made: dict[Tensor, nn.Parameter] = {}
    for name, style in styles.items():
        part = module.get_submodule(name)
        if not any(isinstance(one, AbsentTensor) for one in part.parameters()):
            before, hooks = dict(part._parameters), [*part._forward_hooks]
            # before the style's own hooks, which may make another kind of tensor of the result
            refuse_second_derivatives(part, _WITHOUT_SECOND)
            parallelize_module(part, mesh, style, src_data_rank=None)
            for key, whole in before.items():
                if whole is not None:  # layers that share a weight share the part of it
                    part._parameters[key] = made.setdefault(whole, part.get_parameter(key))
            if _is_whole_outside(style):
                for number in hooks:  # the user's run last, and see what the layer gives
                    part._forward_hooks[number] = part._forward_hooks.pop(number)


def _example(module: nn.Module) -> str:
    """A plan for the networks in a module of which layers widen the values that the next one takes
    back.
    """
    found: dict[str, str] = {}
    wide: dict[str, nn.Linear] = {}
    for name, part in module.named_modules():
        if not isinstance(part, nn.Linear):
            continue
        before = next(iter(wide.values()), part)
        own, others = ((one.in_features, one.out_features) for one in (part, before))
        if wide and own == others[::-1]:
            found |= dict.fromkeys(map(plans.as_pattern, wide), "colwise")
            found[plans.as_pattern(name)] = "rowwise"
        if own != others:
            wide = {}
        if part.out_features > part.in_features:
            wide[name] = part
    return json.dumps(found) if found else ""


def _is_whole_outside(style: ParallelStyle) -> bool:
    if isinstance(style, ColwiseLogits):
        return True
    return isinstance(style, ColwiseParallel | RowwiseParallel) and all(
        one.is_replicate() for one in style.output_layouts
    )


def cut_in(module: nn.Module) -> list[nn.Module]:
    """The layers in a module that are cut, by columns or by rows."""
    return [
        one
        for one in module.modules()
        if isinstance(one, nn.Linear | nn.Embedding) and isinstance(one.weight, DTensor)
    ]


@contextmanager
def explained() -> Iterator[None]:
    """A context in which torch's error over a weight of which each rank has a part says what to
    do.
    """
    try:
        yield
    except RuntimeError as error:
        if _MIXED in str(error):
            raise ModuleError(_BESIDE.format(str(error).partition(",")[0])) from error
        raise


def _style(module: nn.Module, name: str, word: Any) -> ParallelStyle:
    if isinstance(word, ParallelStyle):
        return word
    if word == _OF_EXPERTS:
        return SharedExperts(name)
    if word == _OF_LATENT:
        return LatentKeys(_rotary_width(module, name))
    if word not in _WORDS:
        known = ", ".join(map(repr, (*_WORDS, _OF_EXPERTS, _OF_LATENT, _WHOLE)))
        raise ConfigurationError(
            f"The plan for {name!r} is {word!r}; expected one of torch's styles, or one of "
            f"{known}. Give another plan as tensor_plan=."
        )
    style: ParallelStyle = _WORDS[word]()
    return style


def _rotary_width(module: nn.Module, name: str) -> int:
    owner: Any = module.get_submodule(name.rpartition(".")[0])
    for one in (owner, getattr(owner, "config", None)):
        if isinstance(width := getattr(one, "qk_rope_head_dim", None), int):
            return width
    raise ModuleError(
        f"The plan for {name!r} is {_OF_LATENT!r}, and the module around it has no "
        "qk_rope_head_dim, nor has its config: the number of the last columns, which every head "
        "uses. Leave the attention out of the plan."
    )


def _check_size(name: str, part: nn.Module, style: ParallelStyle, size: int) -> None:
    """Refuse what the ranks can't have equal parts of."""
    if isinstance(style, SharedExperts):
        style.check(part, size)
    if not isinstance(style, ColwiseParallel | RowwiseParallel):
        return
    if (
        not isinstance(part, nn.Linear | nn.Embedding)
        or (weight := part._parameters.get("weight")) is None
    ):
        made = (
            "computes its weight in each call, of the whole"
            if isinstance(part, nn.Linear | nn.Embedding)
            else "is none"
        )
        raise ModuleError(
            f"{name!r} is to be cut by columns or rows, which torch's Linear and Embedding can be, "
            f"and {made} ({type(part).__name__}). Leave it out of the plan."
        )
    dim = _cut_dim(part, style)
    if weight.shape[dim] % size:
        raise ModuleError(
            f"{name!r} has {weight.shape[dim]} {'columns' if dim else 'rows'}, and tensor={size} "
            "doesn't divide that. Choose a size that does, or leave the layer out of the plan."
        )


def _check_heads(name: str, module: nn.Module, style: ParallelStyle, size: int) -> None:
    """Refuse a projection of which a rank would have a part of a head."""
    part, owner = module.get_submodule(name), module.get_submodule(name.rpartition(".")[0])
    rows, width = getattr(part, "out_features", None), getattr(owner, "head_dim", None)
    leaves_parts = isinstance(style, ColwiseParallel) and not any(
        one.is_replicate() for one in style.output_layouts
    )
    if not leaves_parts or not isinstance(rows, int) or not isinstance(width, int) or rows % width:
        return
    if (heads := rows // width) % size:
        raise ModuleError(
            f"{name!r} has {heads} heads of {width} numbers, and tensor={size} doesn't divide "
            f"{heads}: a rank would have a part of a head. Choose a size that does, or leave this "
            "attention out of the plan."
        )


def _refuse_parameters(module: nn.Module, planned: Mapping[str, Any]) -> None:
    modules = dict(module.named_modules())
    if others := [name for name in planned if name not in modules]:
        raise ConfigurationError(
            f"The plan names {others[0]!r}, which is a parameter and no module, with "
            f"{planned[others[0]]!r}. Parameters by themselves are cut in modules of experts only, "
            f"which have {_OF_EXPERTS!r}. Give another plan as tensor_plan=."
        )


def _cut_dim(part: nn.Module, style: ParallelStyle) -> int:
    """The dim of its weight along which a layer is cut."""
    return int(isinstance(style, RowwiseParallel) != isinstance(part, nn.Embedding))


def _shared(module: nn.Module) -> Iterator[list[str]]:
    """The names of each parameter that several modules have."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    yield from (one for one in names.values() if len(one) > 1)


def _refuse_tied(module: nn.Module, styles: Mapping[str, ParallelStyle]) -> None:
    for names in _shared(module):
        owners = [name.rpartition(".")[0] for name in names]
        found = [styles.get(one) for one in owners]
        dims = {
            _cut_dim(module.get_submodule(owner), style)
            for owner, style in zip(owners, found, strict=True)
            if isinstance(style, ColwiseParallel | RowwiseParallel)
        }
        is_alike = len(dims) == 1 and None not in found
        if any(found) and not is_alike:
            raise ModuleError(
                f"{names[0]!r} and {names[1]!r} share a weight, and the plan cuts one of them, or "
                "each along another dim: they would go apart. Leave both out of the plan, cut both "
                "by words ('embedding_rowwise' and 'colwise_gather_output'), or untie them."
            )


def _heads(module: nn.Module, size: int, *, joins_first: bool) -> dict[str, Any]:
    """Words of classes of transformers for what their config leaves out, where that is right by its
    form: heads and embeddings, cut by words.
    """
    planned = plans.of_classes(module)
    found = {
        name: (word, owner)
        for name, (word, owner) in planned.items()
        if _is_of_words(module.get_submodule(name), word)
    }
    for name in [*found]:
        number = module.get_submodule(name).get_parameter("weight").shape[0]
        if number % size:
            del found[name]
            if not dist.is_initialized() or dist.get_rank() == 0:
                _log.info(_LEFT_WHOLE, name, number, size, size)
    for names in _shared(module):
        owners = {name.rpartition(".")[0] for name in names}
        if joins_first or not owners <= found.keys():  # stages would have it
            found = {name: one for name, one in found.items() if name not in owners}
    return {
        name: word
        if word not in _GATHERED or joins_first
        else ColwiseLogits(module.get_submodule(owner))
        for name, (word, owner) in found.items()
    }


def _is_of_words(part: nn.Module, word: Any) -> bool:
    """True for a head or an embedding that computes as torch's do, with a row for each word; the
    embedding's may be scaled.
    """
    if part._parameters.get("weight") is None:
        return False
    if isinstance(part, nn.Embedding):
        is_known = type(part).forward is nn.Embedding.forward or hasattr(part, "embed_scale")
        changes = part.max_norm is not None or part.sparse or part.scale_grad_by_freq
        return word == "embedding_rowwise" and is_known and not changes
    return word in _GATHERED and type(part).forward is nn.Linear.forward
