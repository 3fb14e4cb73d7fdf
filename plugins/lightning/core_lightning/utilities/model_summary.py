"""The parts of a module as a text, for programs that print it."""

from __future__ import annotations

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
        self.layer_names, self.layer_types = (
            list(layers),
            [type(part).__name__ for part in layers.values()],
        )
        self.param_nums = [_count(part) for part in layers.values()]
        self.total_parameters, self.trainable_parameters = (
            _count(model),
            _count(model, trained_only=True),
        )

    def __str__(self) -> str:
        rows = [*zip(self.layer_names, self.layer_types, map(str, self.param_nums), strict=True)]
        rows = [("name", "type", "parameters"), *rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join(
            [
                *lines,
                f"{self.trainable_parameters} of {self.total_parameters} parameters are trained",
            ]
        )


def summarize(lightning_module: nn.Module, max_depth: int = 1) -> ModelSummary:
    """The summary of a module."""
    return ModelSummary(lightning_module, max_depth)


def _count(part: nn.Module, *, trained_only: bool = False) -> int:
    return sum(
        parameter.numel()
        for parameter in part.parameters()
        if parameter.requires_grad or not trained_only
    )
