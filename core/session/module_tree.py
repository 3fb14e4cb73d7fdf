"""The contents of a module and its parts, by name; walked without a call for each part.

`torch.compile` puts a part of a module into another one, whose `_orig_mod` it becomes. Canonical
names leave that out: a state means the same whether anything is compiled or not.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from torch import nn

_COMPILED = "_orig_mod"


def parameter_names(module: nn.Module) -> dict[int, str]:
    """Canonical name of each parameter by `id`; the first one for a parameter that is shared."""
    names: dict[int, str] = {}
    for prefix, part in _parts(module):
        for name, parameter in part._parameters.items():
            if parameter is not None:
                names.setdefault(id(parameter), prefix + name)
    return names


def tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, by each of their canonical names."""
    named = (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    )
    return {canonical_name(name) if _COMPILED in name else name: tensor for name, tensor in named}


def is_on(module: nn.Module, device: torch.device, base: type[nn.Module]) -> bool:
    """True if `module.to(device)` would do nothing. The answer is no if a part has its own
    `_apply`.

    Args:
        module: with parameters and buffers.
        device: with its index.
        base: `torch.nn.Module`.
    """
    kinds = set()
    for _, part in _parts(module):
        kinds.add(type(part))
        for tensors in (part._parameters, part._buffers):
            for tensor in tensors.values():
                if tensor is not None and tensor.device != device:
                    return False
    # An override may do more than move tensors, so that module has to be asked.
    return all(kind._apply is base._apply and kind.to is base.to for kind in kinds)


def tie_again(module: nn.Module, before: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Restore shared parameters, after each name got one of its own.

    Args:
        module: some of whose parameters were replaced, each name's by itself.
        before: the parameters that it had, by each of their names.

    Returns:
        Those of them that were replaced, by the first of their names.
    """
    replaced, firsts = {}, dict[int, str]()
    for name, old in before.items():
        first = firsts.setdefault(id(old), name)
        new = module.get_parameter(first)
        if first == name and new is not old:
            replaced[name] = old
        elif module.get_parameter(name) is not new:
            path, _, last = name.rpartition(".")
            module.get_submodule(path)._parameters[last] = new
    return replaced


def canonical_name(name: str) -> str:
    """The name without the parts that `torch.compile` has put in."""
    return (
        ".".join(part for part in name.split(".") if part != _COMPILED)
        if _COMPILED in name
        else name
    )


def to_canonical(state: Mapping[str, object]) -> Mapping[str, Any]:
    """A module's `state_dict()` under canonical names; the same object if it has those already."""
    if _COMPILED not in "\n".join(state):
        return state
    renamed = OrderedDict((canonical_name(name), value) for name, value in state.items())
    if metadata := getattr(state, "_metadata", None):
        renamed._metadata = OrderedDict(  # type: ignore[attr-defined]
            (canonical_name(name), version) for name, version in metadata.items()
        )
    return renamed


def from_canonical(module: nn.Module, state: Mapping[str, object]) -> Mapping[str, Any]:
    """A state under the names that `module.load_state_dict` expects."""
    state = to_canonical(state)
    if not any(_COMPILED in part._modules for _, part in _parts(module)):
        return state
    own = {canonical_name(name): name for name in module.state_dict()}
    return {own.get(name, name): value for name, value in state.items()}


def _parts(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The module and all in it, each once and in torch's order, with the prefix of its names."""
    waiting, seen = [("", module)], set()
    while waiting:
        prefix, part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield prefix, part
        if not part._modules:
            continue
        children = [
            (prefix if name == _COMPILED else f"{prefix}{name}.", child)
            for name, child in part._modules.items()
            if child is not None
        ]
        # A stack gives out the last first.
        waiting.extend(reversed(children))


def without_self_copies(module: nn.Module, state: Mapping[str, object]) -> Mapping[str, object]:
    """The same state, with the module's own tensors where it has them already: torch copies nothing
    onto itself then.

    Args:
        module: that the state is loaded into.
        state: under canonical names.
    """
    own = tensors(module)
    same = {
        name: own[name]
        for name, value in state.items()
        if name in own and is_same(own[name], value)
    }
    if not same:
        return state
    replaced = OrderedDict({**state, **same})
    if hasattr(state, "_metadata"):  # the versions of the module's parts
        replaced._metadata = state._metadata  # type: ignore[attr-defined]
    return replaced


def is_same(own: Any, value: Any) -> bool:
    """True if two tensors, or this rank's parts of them, are the same memory, seen in the same
    way.
    """
    if not hasattr(own, "data_ptr") or not hasattr(value, "data_ptr"):
        return False
    if own is value:
        return True
    if hasattr(own, "to_local"):
        is_alike = (
            type(own) is type(value)
            and own.shape == value.shape
            and own.placements == value.placements
        )
        if not is_alike or own.device_mesh != value.device_mesh:
            return False
        own, value = own.to_local(), value.to_local()
    own, value = own.detach(), value.detach()
    return type(own) is type(value) and own.shape == value.shape and _view(own) == _view(value)


def _view(tensor: Any) -> tuple[object, ...]:
    # An address of 0 may be that of any tensor, such as one on the meta device: each is a view of
    # its own.
    address = tensor.data_ptr() or id(tensor)
    return (
        address,
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor.is_conj(),
        tensor.is_neg(),
    )
