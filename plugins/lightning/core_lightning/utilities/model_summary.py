"""The parts of a module as a text, for programs that print it."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn


class ModelSummary:
    """The parts of a module, down to a depth, with their classes and numbers of parameters.

    Attributes:
        layer_names: paths of the parts.
        layer_types: names of their classes.
        param_nums: elements of each part's parameters, with those of its own parts.
        total_parameters: elements of all parameters.
        trainable_parameters: elements of those that are trained.
    """

    def __init__(self, model: nn.Module, max_depth: int = 1) -> None:
        """Look at a module; -1 is any depth."""
        layers = {
            name: part
            for name, part in model.named_modules()
            if name and (max_depth < 0 or name.count(".") < max_depth)
        }
        self.layer_names = list(layers)
        self.layer_types = [type(part).__name__ for part in layers.values()]
        self.param_nums = [_count(part.parameters()) for part in layers.values()]
        self.total_parameters = _count(model.parameters())
        self.trainable_parameters = _count(
            parameter for parameter in model.parameters() if parameter.requires_grad
        )

    def __str__(self) -> str:
        names = max(map(len, ["name", *self.layer_names]))
        types = max(map(len, ["type", *self.layer_types]))
        lines = [f"{'name':{names}}  {'type':{types}}  parameters"]
        rows = zip(self.layer_names, self.layer_types, self.param_nums, strict=True)
        lines += [f"{name:{names}}  {kind:{types}}  {number}" for name, kind, number in rows]
        trained = f"{self.trainable_parameters} of {self.total_parameters} parameters are trained"
        return "\n".join([*lines, trained])


def summarize(lightning_module: nn.Module, max_depth: int = 1) -> ModelSummary:
    """The summary of a module."""
    return ModelSummary(lightning_module, max_depth)


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)
