"""The number of the batch that runs."""

from __future__ import annotations

from typing import Any

from torch import nn

from core import Callback, Trainer


class NumbersBatches(Callback):
    """Notes which batch runs, in its epoch and in all: core counts those that were consumed."""

    def on_train_batch_start(
        self, trainer: Trainer, module: nn.Module, batch: Any, batch_idx: int
    ) -> None:
        """Before the hooks of others."""
        vars(trainer)["batch_numbers"] = batch_idx, trainer.progress.total_batches
