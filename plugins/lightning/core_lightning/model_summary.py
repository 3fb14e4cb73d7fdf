"""The parts of a module as a text, for programs that print it."""

from __future__ import annotations

from torch import nn


class ModelSummary:
    """The parts of a module, down to a depth, with their classes and numbers of parameters."""

    def __init__(self, model: nn.Module, max_depth: int = 1) -> None:
        """Look at a module; -1 is any depth."""
        self._model = model
        self._layers = {
            name: part
            for name, part in model.named_modules()
            if name and (max_depth < 0 or name.count(".") < max_depth)
        }

    @property
    def layer_names(self) -> list[str]:
        """Paths of the parts."""
        return list(self._layers)

    @property
    def layer_types(self) -> list[str]:
        """Names of their classes."""
        return [type(part).__name__ for part in self._layers.values()]

    @property
    def param_nums(self) -> list[int]:
        """Elements of each part's parameters, with those of its own parts."""
        return [_count(part) for part in self._layers.values()]

    @property
    def total_parameters(self) -> int:
        """Elements of all parameters."""
        return _count(self._model)

    @property
    def trainable_parameters(self) -> int:
        """Elements of those that are trained."""
        return _count(self._model, trained_only=True)

    def __str__(self) -> str:
        rows = [*zip(self.layer_names, self.layer_types, map(str, self.param_nums), strict=True)]
        rows = [("name", "type", "parameters"), *rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, f"{self.trainable_parameters} of {self.total_parameters} parameters are trained"])


def summarize(lightning_module: nn.Module, max_depth: int = 1) -> ModelSummary:
    """The summary of a module."""
    return ModelSummary(lightning_module, max_depth)


def _count(part: nn.Module, *, trained_only: bool = False) -> int:
    return sum(parameter.numel() for parameter in part.parameters() if parameter.requires_grad or not trained_only)
