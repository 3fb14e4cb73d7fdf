"""The base of progress bars that another library draws: a bar for each stage."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from core_training.callbacks import ProgressBar
from core_training.trainer import Trainer

_STAGES: dict[str | None, str] = {
    "fit": "validation",
    "validate": "validation",
    "test": "test",
    "predict": "predict",
}


class StageBars(ProgressBar):
    """A tqdm bar, or one with the same methods, for each stage. Meant to be subclassed.

    Attributes:
        refresh_rate: batches between two drawings.
    """

    sanity_check_description = "Sanity Checking"
    train_description = "Training"
    validation_description = "Validation"
    test_description = "Testing"
    predict_description = "Predicting"
    refresh_rate = 1
    _loader: int | None = None

    def make_bar(self, stage: str) -> Any:
        """Rank 0. A bar for `"sanity"`, `"train"`, `"validation"`, `"test"` or `"predict"`, when
        that begins.
        """
        raise NotImplementedError

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Show the epochs."""
        self.train_progress_bar = self.make_bar("train")

    def on_train_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Begin anew."""
        _begin(self.train_progress_bar, self.total_train_batches, f"Epoch {trainer.current_epoch}")

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Draw, every `refresh_rate` batches."""
        if _advance(self.train_progress_bar, batch_idx + 1, self.refresh_rate):
            self.train_progress_bar.set_postfix(self.get_metrics(trainer, module))

    def on_train_epoch_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Draw the epoch's metrics."""
        if not self.train_progress_bar.disable:
            self.train_progress_bar.set_postfix(self.get_metrics(trainer, module))

    def on_train_end(self, trainer: Trainer, module: nn.Module) -> None:
        """End the bar."""
        self.train_progress_bar.close()

    def on_validation_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Show the run, or the sanity check."""
        self._stage = _STAGES[trainer.stage]
        self._attribute = f"{self._stage}_progress_bar".replace("validation", "val")
        name = self._stage
        if trainer.sanity_checking:
            name = "sanity"
        setattr(self, self._attribute, self.make_bar(name))

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        module: nn.Module,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Begin anew with each loader."""
        if self._loader == dataloader_idx:
            return
        self._loader = dataloader_idx
        what = getattr(self, f"{self._stage}_description")
        if trainer.sanity_checking:
            what = self.sanity_check_description
        total = self._count_evaluated(trainer)[dataloader_idx]
        _begin(getattr(self, self._attribute), total, f"{what} DataLoader {dataloader_idx}")

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        module: nn.Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Draw, every `refresh_rate` batches."""
        _advance(getattr(self, self._attribute), batch_idx + 1, self.refresh_rate)

    def on_validation_end(self, trainer: Trainer, module: nn.Module) -> None:
        """End the bar; within training, its bar shows the metrics."""
        getattr(self, self._attribute).close()
        self._loader = None
        if trainer.stage == "fit" and not trainer.sanity_checking:
            StageBars.on_train_epoch_end(self, trainer, module)

    on_test_start = on_predict_start = on_validation_start
    on_test_batch_start = on_predict_batch_start = on_validation_batch_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end
    on_test_end = on_predict_end = on_validation_end


def _begin(bar: Any, total: float, description: str) -> None:
    bar.reset()
    bar.total = total
    if math.isinf(total):
        bar.total = None
    bar.initial = 0
    bar.set_description(description)


def _advance(bar: Any, count: int, rate: int) -> bool:
    """Draw, if it is time; true then."""
    if bar.disable or (count % rate and count != bar.total):
        return False
    bar.n = count
    bar.refresh()
    return True
