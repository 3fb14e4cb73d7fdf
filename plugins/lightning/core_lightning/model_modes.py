"""The hooks by which Lightning's modules choose the mode in which each part of them is evaluated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core import Callback

if TYPE_CHECKING:
    from torch import nn

    from core import Trainer


class ModelModes(Callback):
    """Calls `on_validation_model_eval` and its siblings, in the place of the evaluation mode of the whole module.

    Afterwards each part is in the mode that it had before, so that `on_validation_model_train` has nothing to do.
    """

    def on_validation_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Before `on_validation_start` of the module."""
        _call(module, "on_validation_model_eval")

    def on_test_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Before `on_test_start` of the module."""
        _call(module, "on_test_model_eval")

    def on_predict_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Before `on_predict_start` of the module."""
        _call(module, "on_predict_model_eval")


def _call(module: nn.Module, name: str) -> None:
    if (hook := getattr(module, name, None)) is not None:
        hook()
