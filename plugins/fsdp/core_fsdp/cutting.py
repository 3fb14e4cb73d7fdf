"""Calling `fully_shard` on the parts of a module, the inner ones first."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from core_fsdp import forward, wrapping

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import OffloadPolicy

    from core_fsdp.options import Sharding

_RELEASED = (
    "Parameters of a unit are released after its backward, and can't be read then. Leave them "
    "whole: strategy='ddp', or auto_wrap_policy=None."
)
_INSTANCE_NORM = nn.modules.instancenorm._InstanceNorm


def cut(
    module: nn.Module,
    units: Sequence[nn.Module],
    sharding: Sharding,
    *,
    mesh: DeviceMesh,
    mp_policy: MixedPrecisionPolicy,
    offload_policy: OffloadPolicy,
    kept: Collection[Tensor] = (),
) -> None:
    """All ranks. Cut the parameters of a module into shards, in place.

    Args:
        module: whose own step or forward is a unit too; with manual optimization its children's
            are.
        units: parts of it that are gathered by themselves, each before those that contain it.
        sharding: when gathered parameters are freed.
        mesh: over which is sharded.
        mp_policy: formats of what is gathered and reduced.
        offload_policy: where shards rest.
        kept: tensors that are gathered in float32, whatever the policy says.
    """
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": mp_policy,
        "offload_policy": offload_policy,
    }
    is_automatic = getattr(module, "automatic_optimization", True)
    roots = [module] if is_automatic else wrapping.units_for_manual_optimization(module)
    # From the inside out: what is cut already stays out of the unit around it.
    within = {**options, "reshard_after_forward": sharding.reshard_after_forward is not False}
    _cut_layers_in_float32(module, within, {id(one) for one in kept})
    for unit in units:
        if not isinstance(unit, FSDPModule) and unit not in roots:
            fully_shard(unit, **within)
            forward.refuse_second_derivatives(unit, _RELEASED)
    for root in roots:
        if root is module or not isinstance(root, FSDPModule):
            fully_shard(root, **options, reshard_after_forward=sharding.reshard_after_forward)
    let_replace(module)


def let_replace(module: nn.Module) -> None:
    """Make torch replace the parameters of recurrent layers when it gathers them, as it does those
    of others.

    These layers have an own `__setattr__`, which torch then goes through: to everyone who watches a
    module that is a new parameter. It keeps a list of the layer's parameters up to date, and here
    each call does.
    """
    for part in module.modules():
        if isinstance(part, nn.RNNBase) and "__setattr__" not in vars(part):
            # of all that torch looks at this one
            vars(part)["__setattr__"] = MethodType(nn.Module.__setattr__, part)
            part.register_forward_pre_hook(_list_parameters)


def _list_parameters(module: Any, inputs: Any) -> None:
    module._flat_weights = [getattr(module, name, None) for name in module._flat_weights_names]


def _cut_layers_in_float32(module: nn.Module, options: dict[str, Any], kept: set[int]) -> None:
    """Gather as they are, one by one, the weights that are kept, and those of layers that need
    their inputs' format.

    Batch normalization's have to be of one format with its running statistics. Where inputs are
    left to autocast, some layers compute in that of their inputs, and take no weights of 16 bits to
    inputs of 32.
    """
    kinds: tuple[type[nn.Module], ...] = ()
    if options["mp_policy"].param_dtype is not None:
        kinds = (nn.modules.batchnorm._BatchNorm,)
        if not options["mp_policy"].cast_forward_inputs:
            kinds = (*kinds, *_not_of_autocast(options["mesh"].device_type))
    own = {
        **options,
        "mp_policy": MixedPrecisionPolicy(cast_forward_inputs=False),
        "reshard_after_forward": False,
    }
    keeping = [
        part
        for part in module.modules()
        if any(id(one) in kept for one in part.parameters(recurse=False))
    ]
    parts = [part for part in module.modules() if isinstance(part, kinds) or part in keeping]
    chosen = wrapping.units_of(module, [part for part in reversed(parts) if part is not module])
    for part in chosen:
        if part in keeping:  # what is in it stays out of its unit
            for inner in wrapping.units_of(module, list(_called_in(part))):
                if not all(id(one) in kept for one in inner.parameters()) and not isinstance(
                    inner, FSDPModule
                ):
                    fully_shard(inner, **options)
        if list(part.parameters()) and not isinstance(part, FSDPModule):
            if isinstance(part, _INSTANCE_NORM):
                part.register_forward_hook(_no_view)
            fully_shard(part, **own)


def _called_in(part: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules within one that can be called."""
    for child in part.children():
        if wrapping.has_forward(child):
            yield child
        else:
            yield from _called_in(child)


def _no_view(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """A copy of what instance normalization returns: an operation in place on a view would undo a
    unit's hooks.
    """
    return output.clone()


def _not_of_autocast(device_type: str) -> tuple[type[nn.Module], ...]:
    """Layers that torch's autocast leaves alone: on a CPU those too that it computes in float32 on
    other devices.
    """
    on_cpu = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.Bilinear)
    return (_INSTANCE_NORM, *on_cpu) if device_type == "cpu" else (_INSTANCE_NORM,)
