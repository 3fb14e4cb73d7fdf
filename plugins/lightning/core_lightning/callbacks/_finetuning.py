"""Fine-tuning and pruning with the numbers that Lightning's have."""

from __future__ import annotations

import functools
from typing import Any

from core_training.finetuning import BackboneFinetuning as CoreBackboneFinetuning
from core_training.finetuning import ModelPruning as CoreModelPruning


class BackboneFinetuning(CoreBackboneFinetuning):
    """See `core.callbacks.BackboneFinetuning`. Batch norms of a frozen backbone are trained
    whatever `train_bn` is.
    """

    def freeze_before_training(self, pl_module: Any) -> None:
        """Freeze the backbone."""
        self.freeze(pl_module.backbone)


class ModelPruning(CoreModelPruning):
    """See `core.callbacks.ModelPruning`. The lottery ticket puts weights back in the first
    pruning of a `fit`.
    """

    @functools.wraps(CoreModelPruning.__init__)  # type: ignore[misc]  # a constructor's signature
    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._ticket, self._is_back = self.use_lottery_ticket_hypothesis, False
        # what Lightning puts back the first time is trained on
        if self._ticket and not self.resample_parameters:
            self.use_lottery_ticket_hypothesis = self._is_first

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Find what is pruned."""
        self._is_back = False
        super().setup(trainer, module, stage)

    def _is_first(self, epoch: int) -> bool:
        if self._is_back:
            return False
        wanted = self._ticket
        if callable(wanted):
            wanted = wanted(epoch)
        self._is_back = bool(wanted)
        return self._is_back
