"""The Trainer's properties about its data, for modules and callbacks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from core.contract import Capability

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.contract import Strategy
    from core.trainer.data.loaders import Loaders, StageLoader
    from core.trainer.settings.options import TrainerOptions


class DataViews:
    """The part of `Trainer` that shows loaders and their lengths, from the time on when they are set up."""

    options: TrainerOptions
    loaders: Loaders | None
    accumulate_grad_batches: int

    if TYPE_CHECKING:

        @property
        def strategy(self) -> Strategy:
            """The strategy that trains the module."""

    @property
    def train_dataloader(self) -> Any:
        """This rank's training loader; several in the structure in which the user gave them. None before `fit`."""
        from core.trainer.data.combined import CombinedLoader

        train = self.loaders.train if self.loaders is not None else None
        return train.loaders if isinstance(train, CombinedLoader) else train

    @property
    def val_dataloaders(self) -> Any:
        """This rank's validation loader, or the list of them; None if there is none."""
        return _shown(self.loaders.validation) if self.loaders is not None else None

    @property
    def test_dataloaders(self) -> Any:
        """This rank's test loader, or the list of them; None if there is none."""
        return _shown(self.loaders.test) if self.loaders is not None else None

    @property
    def predict_dataloaders(self) -> Any:
        """This rank's prediction loader, or the list of them; None if there is none."""
        return _shown(self.loaders.predict) if self.loaders is not None else None

    @property
    def num_training_batches(self) -> int | float:
        """Batches of a training epoch on this rank; infinite if unknown."""
        return self.loaders.num_train_batches if self.loaders is not None else 0

    @property
    def num_val_batches(self) -> list[int | float]:
        """Batches of a validation run on this rank, for each loader."""
        return [loader.num_batches for loader in self.loaders.validation] if self.loaders is not None else []

    @property
    def num_sanity_val_batches(self) -> list[int | float]:
        """Batches of the sanity check on this rank, for each validation loader."""
        steps = self.options.num_sanity_val_steps
        return [batches if steps < 0 else min(batches, steps) for batches in self.num_val_batches]

    @property
    def num_test_batches(self) -> list[int | float]:
        """Batches of a test run on this rank, for each loader."""
        return [loader.num_batches for loader in self.loaders.test] if self.loaders is not None else []

    @property
    def num_predict_batches(self) -> list[int | float]:
        """Batches of a prediction run on this rank, for each loader."""
        return [loader.num_batches for loader in self.loaders.predict] if self.loaders is not None else []

    @property
    def window(self) -> int:
        """Batches of an accumulation window, as the loop counts them: a compiled step is handed whole windows."""
        is_compiled = Capability.COMPILED_STEP in self.strategy.capabilities
        return 1 if is_compiled else self.accumulate_grad_batches

    def take_window(self) -> None:
        """All ranks, once there are loaders. The accumulation window that `global_batch_size` asks for."""
        if self.loaders is not None and self.loaders.global_batch is not None:
            self.accumulate_grad_batches = self.loaders.global_batch.num_accumulated

    @property
    def estimated_stepping_batches(self) -> int | float:
        """All ranks, within `fit`. Optimizer steps that the run will make by its limits, from its first epoch on.

        For schedulers, in `configure_optimizers`: asks for the loaders if that hasn't been done. Infinite without a
        limit. The accumulation window is taken to stay as it is.
        """
        options = self.options
        if self.loaders is not None:
            self.loaders.setup(self.strategy)
        epochs = math.inf if options.max_epochs is None else options.max_epochs
        windows = self.num_training_batches / self.window
        windows = (math.ceil(windows) if math.isfinite(windows) else windows) * self.strategy.updates_per_batch
        steps = windows * epochs if epochs else 0
        return steps if options.max_steps < 0 else min(steps, options.max_steps)


def _shown(loaders: Sequence[StageLoader]) -> Any:
    shown = [loader.loader for loader in loaders]
    return shown[0] if len(shown) == 1 else shown or None
