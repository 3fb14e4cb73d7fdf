"""The contents of a module and its parts, by name; walked without a call for each part.

`torch.compile` puts a part of a module into another one, whose `_orig_mod` it becomes. Canonical
names leave that out: a state means the same whether anything is compiled or not.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from core.contract.errors import CheckpointError

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
    parameters = module.named_parameters(remove_duplicate=False)
    named = (*parameters, *module.named_buffers(remove_duplicate=False))
    return {canonical_name(name): tensor for name, tensor in named}


def whole_state(module: nn.Module) -> dict[str, Any]:
    """The module's own state under canonical names.

    Raises:
        CheckpointError: a parameter is this rank's part of a tensor, and doesn't say so to torch.
    """
    for name, parameter in module.named_parameters():
        if hasattr(parameter, "global_offsets"):
            raise CheckpointError(
                f"{name!r} is a rank's part of a tensor, which state_dict() loses: use a DTensor."
            )
    # Not copied: torch's dict carries the versions of torch's modules.
    return to_canonical(module.state_dict())  # type: ignore[return-value]


def is_on(module: nn.Module, device: torch.device) -> bool:
    """True if `module.to(device)` would do nothing. The answer is no if a part has its own
    `_apply`.

    Args:
        module: with parameters and buffers.
        device: with its index.
    """
    from torch import nn

    kinds = set()
    for _, part in _parts(module):
        kinds.add(type(part))
        for tensors in (part._parameters, part._buffers):
            for tensor in tensors.values():
                if tensor is not None and tensor.device != device:
                    return False
    # An override may do more than move tensors, so that module has to be asked.
    return all(kind._apply is nn.Module._apply and kind.to is nn.Module.to for kind in kinds)


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
    if _COMPILED not in name:
        return name
    return ".".join(part for part in name.split(".") if part != _COMPILED)


def to_canonical(state: Mapping[str, object]) -> Mapping[str, Any]:
    """A module's `state_dict()` under canonical names; the same object if it has those already."""
    if _COMPILED not in "\n".join(state):
        return state
    renamed = OrderedDict((canonical_name(name), value) for name, value in state.items())
    metadata = getattr(state, "_metadata", {})
    renamed._metadata = {  # type: ignore[attr-defined]
        canonical_name(name): version for name, version in metadata.items()
    }
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
    waiting = [("", module)]
    seen = set()
    while waiting:
        prefix, part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield prefix, part
        # A stack gives out the last first.
        for name, child in reversed(part._modules.items()):
            if name == _COMPILED:
                name = ""
            else:
                name += "."
            if child is not None:
                waiting.append((prefix + name, child))
