"""The hooks by which Lightning's modules choose the mode in which each part of them is evaluated,
and trained after.
"""

from __future__ import annotations

from typing import Any


class ModeHooks:
    """The hooks as a module has them without its own, for those that call `super()`."""

    trainer: Any

    def _evaluate(self) -> None:
        self.trainer.model.eval()

    def _train(self) -> None:
        self.trainer.model.train()

    on_validation_model_eval = on_test_model_eval = on_predict_model_eval = _evaluate
    on_validation_model_train = on_test_model_train = _train

    def on_validation_model_zero_grad(self) -> None:
        """Before a validation run within `fit`: free the memory of gradients."""
        self.zero_grad()  # type: ignore[attr-defined]


MODE_HOOKS = tuple(name for name in vars(ModeHooks) if "_model_" in name)
"""Their names."""
