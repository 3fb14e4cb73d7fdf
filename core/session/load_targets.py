"""The tensors that a checkpoint is read into, so that nothing is held twice."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from core.contract.sharded_leaf import ShardedLeaf, TensorDescription
from core.session import optimizer_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def module_targets(described: Any, own: Mapping[str, Any]) -> dict[str, object] | None:
    """The module's own tensors, if the checkpoint has exactly these; else its own hooks have a say
    in what fits.
    """
    if not isinstance(described, dict) or described.keys() != own.keys():
        return None
    targets = {}
    for name, value in own.items():
        shape = getattr(described[name], "shape", None)
        if isinstance(value, ShardedLeaf):
            own_shape: object = value.global_shape
        else:
            own_shape = getattr(value, "shape", None)
        if shape != own_shape:
            return None
        if shape is not None:
            targets[name] = value
    return targets


def optimizer_targets(
    names: Sequence[str], described: Mapping[str, Any], optimizer: Any
) -> dict[str, object] | None:
    """A tensor for each saved one of a parameter's shape: the optimizer's own, or one that lies as
    the parameter does.

    So a sharded parameter's moments are read in shards, without a step of the optimizer to make
    them first.
    """
    entries = described.get("state")
    if not isinstance(entries, dict):
        return None
    groups = [group["params"] for group in optimizer.param_groups]
    by_name = dict(zip(names, chain.from_iterable(groups), strict=True))
    # What doesn't fit will be refused when it is restored, and the optimizer's own tensors are as
    # they were then.
    own: Mapping[Any, Any] = {}
    if optimizer_state.fits(described, names, list(map(len, groups))):
        own = getattr(optimizer, "state", {})
    targets: dict[str, dict[str, object]] = {}
    for name, entry in entries.items():
        if name in by_name and isinstance(entry, dict):
            kept = own.get(by_name[name]) or {}
            targets[name] = {
                key: _target(by_name[name], kept.get(key), part) for key, part in entry.items()
            }
    return {"state": targets}


def _target(parameter: Any, own: Any, described: Any) -> object:
    # A step counter has no dims, and a factored moment (Adafactor's) has others: both are read
    # whole.
    is_tensor = isinstance(described, TensorDescription) and described.shape
    if not is_tensor or described.shape != parameter.shape:
        return None
    # Not by what `detach` gives: of a DTensor that takes long.
    kinds = (type(own).__name__, type(parameter).__name__)
    if type(own) is type(parameter) or kinds == ("Tensor", "Parameter"):
        form = (described.shape, described.dtype, parameter.device)
        if (tuple(own.shape), own.dtype, own.device) == form:
            return own
    parameter = parameter.detach()
    # Made for its layout, such as a DTensor's; every element is read over.
    if type(parameter).__module__ == "torch" or hasattr(type(parameter), "__create_chunk_list__"):
        return parameter.new_empty_strided(
            parameter.shape, parameter.stride(), dtype=described.dtype
        )
    return parameter.to(described.dtype, copy=True)
