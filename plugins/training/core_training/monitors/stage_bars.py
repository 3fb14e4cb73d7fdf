"""The base of progress bars that another library draws: a bar for each stage."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from core_training.callbacks import ProgressBar
from core_training.trainer import Trainer


class StageBars(ProgressBar):
    """A tqdm bar, or one with the same methods, for each stage. Meant to be subclassed.

    Attributes:
        refresh_rate: batches between two drawings.
    """

    sanity_check_description, train_description, validation_description = (
        "Sanity Checking",
        "Training",
        "Validation",
    )
    test_description, predict_description = "Testing", "Predicting"
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


def _hooks(stage: str) -> dict[str, Callable[..., None]]:
    """The hooks of a stage that has several loaders."""
    attribute = f"{'val' if stage == 'validation' else stage}_progress_bar"

    def start(self: Any, trainer: Trainer, module: nn.Module) -> None:
        setattr(self, attribute, self.make_bar("sanity" if trainer.sanity_checking else stage))

    def batch_start(
        self: Any,
        trainer: Trainer,
        module: nn.Module,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._loader == dataloader_idx:
            return
        self._loader, limit = dataloader_idx, trainer.options.num_sanity_val_steps
        is_limited = trainer.sanity_checking and limit >= 0
        what = getattr(self, f"{'sanity_check' if trainer.sanity_checking else stage}_description")
        total = min(
            getattr(trainer.loaders, stage)[dataloader_idx].num_batches,
            limit if is_limited else math.inf,
        )
        _begin(getattr(self, attribute), total, f"{what} DataLoader {dataloader_idx}")

    def batch_end(
        self: Any,
        trainer: Trainer,
        module: nn.Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        _advance(getattr(self, attribute), batch_idx + 1, self.refresh_rate)

    def end(self: Any, trainer: Trainer, module: nn.Module) -> None:
        getattr(self, attribute).close()
        self._loader = None
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            StageBars.on_train_epoch_end(self, trainer, module)

    hooks: dict[str, Callable[..., None]] = {
        "start": start,
        "batch_start": batch_start,
        "batch_end": batch_end,
        "end": end,
    }
    return {f"on_{stage}_{name}": hook for name, hook in hooks.items()}


for _stage in ("validation", "test", "predict"):
    for _name, _hook in _hooks(_stage).items():
        setattr(StageBars, _name, _hook)


def _begin(bar: Any, total: float, description: str) -> None:
    bar.reset()
    bar.total = None if math.isinf(total) else total
    bar.initial = 0
    bar.set_description(description)


def _advance(bar: Any, count: int, rate: int) -> bool:
    """Draw, if it is time; true then."""
    if bar.disable or (count % rate and count != bar.total):
        return False
    bar.n = count
    bar.refresh()
    return True
