"""The check that an optimizer of torch can step with a state that somebody else may have written, before it does.

What an optimizer keeps for a parameter is known from a step that another one of its class makes with a tiny parameter.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

from core.contract.errors import CheckpointCorruptedError
from core.session.optimizer_class import FILLED_IN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.optim import Optimizer

_OF_DEVICES: dict[str, Any] = {"foreach": False, "fused": None, "capturable": False, "differentiable": False}
"""Options that choose code for a device, as a step on the CPU has them."""
_SHAPES = ((2,), (2, 3))
"""Of the tiny parameters: Adafactor keeps other things for a matrix than for a vector."""


def check(optimizer: Optimizer, saved: Any) -> None:
    """Refuse a state with which the next step would end in an error, or go on without what it lacks.

    Args:
        optimizer: that is to go on. A class that isn't torch's own passes: what it keeps can't be known.
        saved: its saved state, or a description of it.

    Raises:
        CheckpointCorruptedError: options or entries lack something, or are of another type.
    """
    if not type(optimizer).__module__.startswith("torch.optim") or not _is_form(saved):
        return
    # LBFGS wants a closure, SparseAdam sparse gradients, Muon a matrix.
    if not (shapes := [shape for shape in _SHAPES if _works(optimizer, shape)]):
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for group in saved["param_groups"]:
        if lacking := sorted(optimizer.defaults.keys() - group.keys() - FILLED_IN):
            raise _wrong(optimizer, f"has no option {lacking[0]!r}")
        try:
            kept = [_kept(optimizer, group, shape) for shape in shapes]
        except Exception as error:
            raise _wrong(optimizer, f"has options with which it can't step: {error!s:.200}") from error
        for key in filter(saved["state"].get, group["params"]):
            shape = parameters[key].shape if type(key) is int and key < len(parameters) else None
            reason = ""
            for own in kept:
                if not (reason := _differing(saved["state"][key], own, shape)):
                    break
            else:
                raise _wrong(optimizer, f"has for the parameter {key!r:.80} {reason}")


def _is_form(saved: Any) -> bool:
    """Whether it has the form of torch's own state, of which anything else is refused where it is restored."""
    if not isinstance(saved, dict) or not isinstance(saved.get("state"), dict):
        return False
    groups = saved.get("param_groups")
    is_list = isinstance(groups, list) and all(isinstance(group, dict) for group in groups)
    return is_list and all(
        isinstance(group.get("params"), list)
        and all(issubclass(kind, int | str) for kind in set(map(type, group["params"])))
        for group in groups or []
    )


def _works(optimizer: Optimizer, shape: Sequence[int]) -> bool:
    try:
        _kept(optimizer, optimizer.param_groups[0], shape)
    except Exception:
        return False
    return True


def _kept(optimizer: Optimizer, options: Mapping[str, Any], shape: Sequence[int]) -> dict[str, bool]:
    """Names of the values that such an optimizer keeps for a parameter after a step; True for those of its shape."""
    torch: Any = sys.modules["torch"]  # where one of its optimizers is, it is imported; the session needs none
    parameter = torch.nn.Parameter(torch.zeros(*shape, device="cpu"))
    parameter.grad = torch.zeros_like(parameter)
    kind: Any = type(optimizer)
    arguments = inspect.signature(kind).parameters.keys() - _OF_DEVICES
    trial = kind([parameter], **{name: _here(value) for name, value in optimizer.defaults.items() if name in arguments})
    # A tensor of a description has no value.
    own = {name: _here(value) for name, value in options.items() if not _is_described(value)}
    trial.param_groups[0].update(own, params=[parameter], **_OF_DEVICES)
    with torch.no_grad():
        getattr(kind.step, "__wrapped__", kind.step)(trial)  # without the hooks of all optimizers
    kept: dict[str, Any] = trial.state[parameter]
    return {name: value.shape == parameter.shape for name, value in kept.items()}


def _here(value: Any) -> Any:
    return value.detach().cpu() if hasattr(value, "detach") else value


def _is_described(value: Any) -> bool:
    return hasattr(value, "shape") and not hasattr(value, "detach")


def _differing(entry: Any, kept: Mapping[str, bool], shape: Sequence[int] | None) -> str:
    """How a saved entry differs from what is kept: empty if it doesn't.

    Args:
        entry: for one parameter.
        kept: as `_kept` gives it.
        shape: of the parameter; None if that isn't known.
    """
    if not isinstance(entry, dict):
        return f"the type {type(entry).__name__}, where a dict was expected"
    for name, is_as_large in kept.items():
        if name not in entry:
            return f"no {name!r}; it has {', '.join(sorted(map(repr, entry))):.200}"
        if not hasattr(entry[name], "shape") and not isinstance(entry[name], int | float):
            return f"the type {type(entry[name]).__name__} as {name!r}, where a tensor was expected"
        if is_as_large and shape is not None and (found := tuple(getattr(entry[name], "shape", ()))) != tuple(shape):
            return f"{name!r} of shape {found}, and it is of shape {tuple(shape)}"
    return ""


def _wrong(optimizer: Optimizer, what: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(
        f"The state in the checkpoint isn't one of {type(optimizer).__module__}.{type(optimizer).__qualname__}: it "
        f"{what}. Load another checkpoint, or start a new run from its weights: load the module alone."
    )
