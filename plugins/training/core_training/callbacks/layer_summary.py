"""The summary of a module: layers, parameters, sizes, and the operations of one forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from core.strategies import class_name, find_units

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(slots=True)
class Layer:
    """A module of the user.

    Attributes:
        name: its path from the root; empty for the parameters that the root has besides its
            children's.
        trains: True in training mode.
        kind: name of its class.
        num_parameters: with those of its children, but for the root; each counted once.
        flops: of one forward of the example, with those of its children; None without one.
        in_size, out_size: shapes, nested as they come; None without an example.
    """

    name: str
    trains: bool
    kind: str = ""
    num_parameters: int = 0
    flops: int | None = None
    in_size: object = None
    out_size: object = None


@dataclass(slots=True)
class ModuleSummary:
    """A module's layers and totals.

    Attributes:
        layers: down to the depth that was asked for, in the order of definition; last the root, if
            it has parameters.
        has_lazy: some parameters have no shape yet and aren't counted.
        units: the model's repeated blocks in one line, and how they were found; empty if there are
            none.
    """

    layers: list[Layer] = field(default_factory=list)
    num_trainable: int = 0
    num_frozen: int = 0
    size_bytes: int = 0
    num_modules: int = 0
    flops: int | None = None
    has_lazy: bool = False
    units: str = ""

    @property
    def num_parameters(self) -> int:
        """All of them."""
        return self.num_trainable + self.num_frozen


def count_here(parameter: Any) -> int:
    """Number of elements as far as this rank knows; 0 while there is no shape."""
    if is_lazy(parameter):
        return 0
    return int(parameter.numel())


def summarize(
    module: nn.Module,
    max_depth: int = 1,
    run_example: Callable[[], object] | None = None,
    count: Callable[[nn.Parameter], int] = count_here,
) -> ModuleSummary:
    """Look at a module.

    Args:
        module: the user's.
        max_depth: levels of children that get a row; -1 for all.
        run_example: calls the module's forward, to count operations and see sizes; None leaves that
            out.
        count: number of elements of a parameter.
    """
    summary = ModuleSummary(num_modules=len(list(module.modules())))
    layers = {}
    for name, child in module.named_modules():
        if name and (max_depth < 0 or name.count(".") < max_depth):
            layers[name] = Layer(name, child.training)
    if max_depth and list(module.parameters(recurse=False)):
        layers[""] = Layer("", module.training)
    summary.layers = list(layers.values())
    if run_example is not None:
        summary.flops = _observe(module, layers, run_example)
    # lazy layers have their class and shapes from the example
    for name, layer in layers.items():
        child = module.get_submodule(name)
        layer.kind = class_name(child)
        layer.num_parameters = sum(map(count, child.parameters(recurse=child is not module)))
    for parameter in module.parameters():
        number = count(parameter)
        if parameter.requires_grad:
            summary.num_trainable += number
        else:
            summary.num_frozen += number
        if number:
            summary.size_bytes += number * parameter.element_size()
        summary.has_lazy |= is_lazy(parameter)
    units = find_units(module)
    if units:
        summary.units = str(units)
    return summary


def _observe(
    module: nn.Module, layers: Mapping[str, Layer], run_example: Callable[[], object]
) -> int:
    """Run the example once, in evaluation mode, leaving no trace. Note sizes and operations of the
    layers; returns those of the whole.
    """
    from torch.utils.flop_counter import FlopCounterMode

    def see(layer: Layer, _: nn.Module, inputs: object, output: object) -> None:
        if layer.in_size is None:  # of a layer that is called several times, the first call counts
            layer.in_size = _shapes(inputs)
            layer.out_size = _shapes(output)

    modes = {child: child.training for child in module.modules()}
    handles = [
        module.get_submodule(name).register_forward_hook(partial(see, layer))
        for name, layer in layers.items()
    ]
    module.eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            run_example()
    finally:
        for handle in handles:
            handle.remove()
        for child, mode in modes.items():
            child.training = mode
    counts = counter.get_flop_counts()
    for name, layer in layers.items():
        # torch's counter puts the root's class in front
        path = f"{type(module).__name__}.{name}".rstrip(".")
        layer.flops = sum(counts.get(path, {}).values())
    return sum(counts["Global"].values())


def _shapes(value: Any) -> object:
    """Shapes of the tensors in a structure; a single one without its list."""
    if isinstance(value, torch.Tensor):
        return list(value.shape)
    if isinstance(value, Mapping):
        return {key: _shapes(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if len(value) == 1:
            return _shapes(value[0])
        return [_shapes(item) for item in value]
    return type(value).__name__
