"""The warning of a step that gives its weight under another key."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

import torch

from core.trainer.settings.warn_at import warn_at

if TYPE_CHECKING:
    from core.trainer.run import Run


def warn_of_weights(run: Run, weights: Any) -> None:
    """Warn, at an epoch's first batch, if a dict of a training step has one number under `"weights"`."""
    is_number = isinstance(weights, Real) or (isinstance(weights, torch.Tensor) and weights.numel() == 1)
    if is_number and run.progress.batch == 0 and run.strategy.is_global_zero:
        warn_at(
            getattr(run.module, "training_step", None),
            f"{type(run.module).__name__}.training_step returned a number under 'weights', which is ignored. If it is "
            "the number of items that the loss is a mean over, return it under 'weight'.",
        )
