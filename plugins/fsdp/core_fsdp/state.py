"""The state of sharded modules and optimizers in the canonical form, whole or in shards, and
back.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from core_fsdp.shards import gather, shard_like, without_wrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def whole_leaf(leaf: Any, *, keep: bool) -> Any:
    """All ranks. A leaf as a whole, on the CPU if it was in shards; None where it isn't to be
    kept.
    """
    if isinstance(leaf, DTensor):
        return gather(leaf, keep=keep)
    return sharded_leaf(leaf) if keep else None


def sharded_leaf(leaf: Any) -> Any:
    """A leaf as this rank has it: DTensors stay what they are."""
    # To detach a DTensor takes long, and what a `state_dict` gives is detached.
    return leaf.detach() if isinstance(leaf, Tensor) and leaf.requires_grad else leaf


def module_state(
    named: Mapping[str, Any], module: nn.Module, convert: Callable[[Any], Any]
) -> dict[str, Any]:
    """All ranks. A module's state, leaf by leaf; a parameter with several names is converted once.

    Args:
        named: the module's state by canonical names.
        module: whose state it is.
        convert: makes of a leaf what is wanted.
    """
    # The parameters themselves, in the same order: those that are tied are the same object.
    originals = list(module.state_dict(keep_vars=True).values())
    converted: dict[int, Any] = {}
    state = OrderedDict[str, Any]()
    for (name, leaf), original in zip(named.items(), originals, strict=True):
        if id(original) not in converted:
            converted[id(original)] = convert(without_wrapper(leaf))
        state[name] = converted[id(original)]
    return _with_versions(state, named)


def has_whole(state: Mapping[str, Any]) -> bool:
    """True if there are tensors in a state that aren't in shards."""
    return any(
        isinstance(leaf, Tensor) and not isinstance(leaf, DTensor) for leaf in state.values()
    )


def for_module(own: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """All ranks. A state whose tensors are placed as the module's are; views, so nothing is copied
    yet.

    Args:
        own: the module's state, in shards.
        state: what is to be loaded, by the same names.
    """
    return _with_versions(
        OrderedDict((name, _placed(leaf, own.get(name))) for name, leaf in state.items()), state
    )


def optimizer_state(state: Mapping[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """All ranks. An optimizer's state, by names or positions, each leaf converted."""
    entries = {
        name: {key: convert(leaf) for key, leaf in entry.items()}
        if isinstance(entry, dict)
        else convert(entry)
        for name, entry in state["state"].items()
    }
    return {**state, "state": entries}


def for_optimizer(state: Mapping[str, Any], parameters: Mapping[Any, Tensor]) -> dict[str, Any]:
    """All ranks. An optimizer's state whose tensors are placed as their parameters are.

    Args:
        state: by the same names or positions as `parameters`.
        parameters: which the optimizer holds now.
    """
    entries = {}
    for name, entry in state["state"].items():
        parameter = parameters.get(name)
        entries[name] = {key: placed_state(leaf, parameter) for key, leaf in entry.items()}
    return {**state, "state": entries}


def placed_state(leaf: Any, parameter: Tensor | None) -> Any:
    """A piece of an optimizer's state: of its parameter's shape it is sharded alike, of another
    shape replicated.

    Numbers and tensors of shape () stay as they are, since torch.optim keeps its step counts so.
    """
    if (
        not isinstance(leaf, Tensor)
        or isinstance(leaf, DTensor)
        or not isinstance(parameter, DTensor)
        or not leaf.ndim
    ):
        return leaf
    if leaf.shape == parameter.shape:
        # not a view, which would keep the whole tensor alive
        return shard_like(leaf, parameter).clone()
    mesh = parameter.device_mesh
    return DTensor.from_local(leaf, mesh, [Replicate()] * mesh.ndim, run_check=False)


def _placed(leaf: Any, own: Any) -> Any:
    is_plain = isinstance(leaf, Tensor) and not isinstance(leaf, DTensor)
    if is_plain and isinstance(own, DTensor) and leaf.shape == own.shape:
        return shard_like(leaf, own)
    return leaf


def _with_versions(state: OrderedDict[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    # A module's state_dict carries the versions of its submodules in an attribute.
    if (versions := getattr(source, "_metadata", None)) is not None:
        state._metadata = versions  # type: ignore[attr-defined]
    return state
