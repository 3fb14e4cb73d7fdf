"""The tensors that a checkpoint is read into, so that nothing is held twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract.sharded_leaf import ShardedLeaf, TensorDescription
from core.session import optimizer_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_PLAIN = {("torch", "Tensor"), ("torch.nn.parameter", "Parameter")}


def module_targets(described: Any, own: Mapping[str, Any]) -> dict[str, object] | None:
    """The module's own tensors, if the checkpoint has exactly these; else its own hooks have a say
    in what fits.
    """
    if not isinstance(described, dict) or described.keys() != own.keys():
        return None
    targets = {}
    for name, value in own.items():
        part, shape = described[name], _shape(value)
        if getattr(part, "shape", None) != shape or isinstance(part, TensorDescription) != (
            shape is not None
        ):
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
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    by_name = dict(zip(names, parameters, strict=True))
    # What doesn't fit will be refused when it is restored, and the optimizer's own tensors are as
    # they were then.
    fits = optimizer_state.fits(
        described, names, [len(group["params"]) for group in optimizer.param_groups]
    )
    own = getattr(optimizer, "state", {}) if fits else {}
    targets: dict[str, dict[str, object]] = {}
    for name, entry in entries.items():
        if name in by_name and isinstance(entry, dict):
            kept = own.get(by_name[name])
            kept = kept if isinstance(kept, dict) else {}
            targets[name] = into = {}
            for key, part in entry.items():
                into[key] = _target(by_name[name], kept.get(key), part)
    return {"state": targets}


def _target(parameter: Any, own: Any, described: Any) -> object:
    # A step counter has no dims, and a factored moment (Adafactor's) has others: both are read
    # whole.
    if (
        not isinstance(described, TensorDescription)
        or described.shape != parameter.shape
        or not described.shape
    ):
        return None
    # Not by what `detach` gives: of a DTensor that takes long.
    is_alike = type(own) is type(parameter) or _are_plain(own, parameter)
    if is_alike and (tuple(own.shape), own.dtype, own.device) == (
        described.shape,
        described.dtype,
        parameter.device,
    ):
        return own
    parameter = parameter.detach()
    # Made for its layout, such as a DTensor's; every element is read over.
    if type(parameter).__module__ == "torch" or hasattr(type(parameter), "__create_chunk_list__"):
        return parameter.new_empty_strided(
            parameter.shape, parameter.stride(), dtype=described.dtype
        )
    return parameter.to(described.dtype, copy=True)


def _are_plain(one: object, other: object) -> bool:
    """True if both are plain tensors or parameters, of no subclass."""
    kinds = {
        (type(one).__module__, type(one).__name__),
        (type(other).__module__, type(other).__name__),
    }
    return kinds <= _PLAIN


def _shape(value: object) -> tuple[int, ...] | None:
    shape = value.global_shape if isinstance(value, ShardedLeaf) else getattr(value, "shape", None)
    return tuple(shape) if shape is not None else None
