"""What modules and callbacks may ask a trainer about its run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from core.callbacks.callback import Callback
    from core.callbacks.early_stopping import EarlyStopping
    from core.callbacks.model_checkpoint import ModelCheckpoint
    from core.contract import Strategy
    from core.contract.strategy import Stage
    from core.trainer.metrics import Metrics
    from core.trainer.options import TrainerOptions


class RunViews:
    """The part of `Trainer` that shows limits, optimizers, callbacks, and what is going on."""

    options: TrainerOptions
    callbacks: list[Callback]
    stage: Stage | None
    is_running: bool
    sanity_checking: bool
    metrics: Metrics
    train_metrics: Metrics

    if TYPE_CHECKING:

        @property
        def strategy(self) -> Strategy:
            """Has the optimizers."""

    @property
    def max_epochs(self) -> int | None:
        """The limit; -1 and None for none."""
        return self.options.max_epochs

    @property
    def max_steps(self) -> int:
        """The limit in optimizer steps; -1 for none."""
        return self.options.max_steps

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those of `configure_optimizers`, while `fit` runs."""
        return self.strategy.optimizers

    @property
    def training(self) -> bool:
        """Whether `fit` runs, and neither validates nor checks sanity right now."""
        return self._runs("fit") and self.metrics is self.train_metrics and not self.sanity_checking

    @property
    def validating(self) -> bool:
        """Whether validation runs, also that within `fit`; not the sanity check."""
        within_fit = self._runs("fit") and self.metrics is not self.train_metrics and not self.sanity_checking
        return self._runs("validate") or within_fit

    @property
    def testing(self) -> bool:
        """Whether `test` runs."""
        return self._runs("test")

    @property
    def predicting(self) -> bool:
        """Whether `predict` runs."""
        return self._runs("predict")

    @property
    def checkpoint_callback(self) -> ModelCheckpoint | None:
        """The first ModelCheckpoint; the one that is there by default if the user has brought none."""
        from core.callbacks.model_checkpoint import ModelCheckpoint

        return next((callback for callback in self.callbacks if isinstance(callback, ModelCheckpoint)), None)

    @property
    def early_stopping_callback(self) -> EarlyStopping | None:
        """The first EarlyStopping, if there is one."""
        from core.callbacks.early_stopping import EarlyStopping

        return next((callback for callback in self.callbacks if isinstance(callback, EarlyStopping)), None)

    def _runs(self, stage: Stage) -> bool:
        return self.is_running and self.stage == stage
