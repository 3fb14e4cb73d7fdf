"""A module that computes with the rank's own part of its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn


def use_local(module: nn.Module, to_local: Callable[[Any], Tensor]) -> None:
    """Replace a module's DTensors by plain tensors while its forward runs; gradients go to the
    DTensors.

    Args:
        module: has DTensors.
        to_local: makes a plain tensor of one, by an operation that has a gradient.
    """
    replaced: list[list[tuple[nn.Module, str, Any]]] = []

    def begin(module: nn.Module, args: Any) -> None:
        replaced.append([])
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if hasattr(parameter, "placements"):
                    replaced[-1].append((part, name, parameter))
                    part._parameters[name] = to_local(parameter)  # type: ignore[assignment]  # as torch.func does it

    def end(module: nn.Module, args: Any, output: Any) -> None:
        if replaced:
            for part, name, parameter in replaced.pop():
                part._parameters[name] = parameter

    module.register_forward_pre_hook(begin)
    module.register_forward_hook(end, always_call=True)
