"""PopTorch's optimizers in the place of torch's, and their state in core's canonical form.

The device computes the update, by what it reads of the optimizer in Python: its class, its groups
and a few attributes. Only of PopTorch's own classes can the state be read back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core import ConfigurationError, GradientClipping, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.optim import Optimizer

# AdamW first: newer releases of torch derive it from Adam.
_NAMES = ("AdamW", "Adam", "SGD", "RMSprop")
_OPTIONS = {
    "AdamW": ("lr", "betas", "eps", "weight_decay"),
    "Adam": ("lr", "betas", "eps", "weight_decay"),
    "SGD": ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
    "RMSprop": ("lr", "alpha", "eps", "weight_decay", "momentum", "centered"),
}
_IGNORED_BY_THE_DEVICE = ("amsgrad", "maximize", "capturable", "differentiable")
_WRAPPER = "module."
_CLIPPED = ("AdamW", "Adam", "SGD")

# Names of the device's state tensors are these and the parameter's, as in the vendor's
# tests/optimizers_test.py (poptorch) and include/popart/tensornames.hpp (popart). The documentation
# says that they are others than torch's, and not which.
_STATE = {
    "AdamW": {"exp_avg": "Accl1___", "exp_avg_sq": "Accl2___", "step": "Step___"},
    "Adam": {"exp_avg": "Accl1___", "exp_avg_sq": "Accl2___", "step": "Step___"},
    "SGD": {"momentum_buffer": "Accl1___"},
    "RMSprop": {"square_avg": "Accl1___", "grad_avg": "Accl2___", "momentum_buffer": "Accl3___"},
}


def convert(poptorch: Any, optimizer: Optimizer, clipping: GradientClipping | None) -> Any:
    """PopTorch's optimizer of the same kind, with the same groups, so that schedulers of the given
    one change it.

    One of PopTorch's own comes back as it is.

    Raises:
        UnsupportedError: the device has no such optimizer, or not this option of it.
        ConfigurationError: the user's own optimizer of PopTorch's clips otherwise than the Trainer
            says.
    """
    kind = kind_of(optimizer)
    if isinstance(optimizer, poptorch.optim.Optimizer):
        _check_own_clipping(optimizer, clipping)
        return _standing_for(kind, optimizer)
    for option in _IGNORED_BY_THE_DEVICE:
        if any(group.get(option) for group in optimizer.param_groups):
            raise UnsupportedError(
                f"{kind}({option}=True): IPUs compute the update themselves, and don't know "
                f"{option}."
            )
    limit = {"max_grad_norm": _limit(kind, clipping)} if clipping is not None else {}
    groups = [
        {"params": group["params"], **_options(kind, group)} for group in optimizer.param_groups
    ]
    converted = getattr(poptorch.optim, kind)(
        groups, **_options(kind, optimizer.param_groups[0]), **limit
    )
    converted.param_groups = optimizer.param_groups
    return _standing_for(kind, converted)


def _standing_for(kind: str, optimizer: Any) -> Any:
    """The optimizer, whose checkpoints are those of torch's."""
    optimizer.stands_for = getattr(torch.optim, kind)
    return optimizer


def kind_of(optimizer: Optimizer) -> str:
    """The name of the optimizer's class, or of the one that it is derived from.

    Raises:
        UnsupportedError: the device has no such optimizer.
    """
    kind = type(optimizer)
    for name in _NAMES:
        base = getattr(torch.optim, name)
        if kind is base or (isinstance(optimizer, base) and kind.__module__.startswith("poptorch")):
            return name
    raise UnsupportedError(
        f"{kind.__qualname__}: IPUs compute the update themselves, and nothing of its own code "
        f"runs. Use one of {', '.join(f'torch.optim.{name}' for name in _NAMES)}, itself and not a "
        "subclass."
    )


def _options(kind: str, group: Mapping[str, Any]) -> dict[str, Any]:
    """Options that are given are variable, all others are compiled into the program; momentum costs
    memory.
    """
    options = {name: group[name] for name in _OPTIONS[kind]}
    if kind in ("SGD", "RMSprop") and not options["momentum"]:
        options = {
            name: value
            for name, value in options.items()
            if name not in ("momentum", "dampening", "nesterov")
        }
    return options


def _limit(kind: str, clipping: GradientClipping) -> float:
    if kind not in _CLIPPED or clipping.algorithm != "norm" or clipping.norm_type != 2.0:
        raise UnsupportedError(
            f"gradient_clip_val={clipping.value}: on IPUs gradients are clipped by their 2-norm, "
            f"and with {', '.join(_CLIPPED)} only; this is {kind}, and the "
            f"{clipping.norm_type:g}-{clipping.algorithm}."
        )
    return clipping.value


def _check_own_clipping(optimizer: Any, clipping: GradientClipping | None) -> None:
    own = getattr(optimizer, "max_grad_norm", float("inf"))
    if clipping is not None and own != clipping.value:
        raise ConfigurationError(
            f"gradient_clip_val={clipping.value}, and {type(optimizer).__name__} was made with "
            f"max_grad_norm={own}. Leave out gradient_clip_val: the optimizer's own limit holds."
        )


def values_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The options of all groups, to tell whether the device must be given a change."""
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def to_canonical(optimizer: Any, names: Sequence[str], num_updates: int) -> dict[str, Any]:
    """The optimizer's state by parameter names, read from the device.

    Args:
        optimizer: PopTorch's.
        names: of its parameters, group after group.
        num_updates: that were made, for what the device doesn't count.
    """
    state = optimizer.state_dict()
    kind = kind_of(optimizer)
    given = state["ipu_state"] or {}
    rest = iter(names)
    groups = [
        {**group, "params": [next(rest) for _ in group["params"]]}
        for group in state["param_groups"]
    ]
    entries = {name: _entry(given, kind, name, num_updates) for name in names}
    return {
        "state": {name: entry for name, entry in entries.items() if entry},
        "param_groups": groups,
    }


def _entry(state: Mapping[str, Any], kind: str, name: str, num_updates: int) -> dict[str, Any]:
    found = {key: state.get(f"{prefix}{_WRAPPER}{name}") for key, prefix in _STATE[kind].items()}
    entry = {key: value.detach().clone() for key, value in found.items() if value is not None}
    if entry and kind == "RMSprop":
        entry["step"] = torch.tensor(float(num_updates))
    return entry


def load_canonical(
    optimizer: Any, entries: Mapping[str, Any], groups: list[dict[str, Any]]
) -> None:
    """Load a state by parameter names into the optimizer, which brings it to the device.

    Args:
        optimizer: PopTorch's. Its groups stay the same objects, for schedulers have them.
        entries: by parameter name.
        groups: torch's own, with positions.
    """
    kind = kind_of(optimizer)
    own = optimizer.param_groups
    state = {
        f"{prefix}{_WRAPPER}{name}": torch.as_tensor(entry[key]).detach().clone()
        for name, entry in entries.items()
        for key, prefix in _STATE[kind].items()
        if entry.get(key) is not None
    }
    if state:
        optimizer.load_state_dict(
            {"ipu_state": state, "ipu_param": {}, "state": {}, "param_groups": groups}
        )
    for group, saved in zip(own, groups, strict=True):
        group.update({key: value for key, value in saved.items() if key != "params"})
    optimizer.param_groups = own
