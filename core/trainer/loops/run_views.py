"""The Trainer's properties about its run, for modules and callbacks."""

from __future__ import annotations

from signal import SIGTERM
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from core.contract import Stage, Strategy
    from core.trainer.callbacks.callback import Callback
    from core.trainer.callbacks.early_stopping import EarlyStopping
    from core.trainer.callbacks.model_checkpoint import ModelCheckpoint
    from core.trainer.callbacks.progress_bar import ProgressBar
    from core.trainer.logging.logged_values import LoggedValues
    from core.trainer.logging.metrics import Metrics
    from core.trainer.settings.options import TrainerOptions
    from core.trainer.signals.interruption import SignalGuard

Status: TypeAlias = Literal["initializing", "running", "finished", "interrupted"]


class TrainerState(NamedTuple):
    """The activity of a Trainer.

    Attributes:
        fn: `"fit"`, `"validate"`, `"test"` or `"predict"`, also after its end; None before the first of them.
        stage: `"train"`, `"sanity_check"`, `"validate"`, `"test"` or `"predict"` while it runs, else None.
        status: `"initializing"`, `"running"`, `"finished"`, or `"interrupted"` by an exception or a signal.
    """

    fn: Stage | None
    stage: str | None
    status: Status


class RunViews:
    """The part of `Trainer` that shows limits, optimizers, callbacks, and what is going on."""

    options: TrainerOptions
    callbacks: list[Callback]
    stage: Stage | None
    status: Status
    is_running: bool
    sanity_checking: bool
    metrics: Metrics
    logged: LoggedValues
    module: Any
    signals: SignalGuard

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
    def limit_train_batches(self) -> int | float | None:
        """Batches of a training epoch: a number, a fraction, or None for all."""
        return self.options.limit_train_batches

    @property
    def limit_val_batches(self) -> int | float | None:
        """Likewise of a validation run."""
        return self.options.limit_val_batches

    @property
    def limit_test_batches(self) -> int | float | None:
        """Likewise of a test run."""
        return self.options.limit_test_batches

    @property
    def limit_predict_batches(self) -> int | float | None:
        """Likewise of a prediction run."""
        return self.options.limit_predict_batches

    @property
    def log_every_n_steps(self) -> int:
        """Optimizer steps between step values that go to the loggers."""
        return self.options.log_every_n_steps

    @property
    def check_val_every_n_epoch(self) -> int | None:
        """Epochs between validation runs."""
        return self.options.check_val_every_n_epoch

    @property
    def val_check_interval(self) -> int | float | None:
        """Batches between validation runs, or a fraction of an epoch."""
        return self.options.val_check_interval

    @property
    def num_nodes(self) -> int:
        """Number of machines."""
        return self.strategy.num_nodes

    @property
    def num_devices(self) -> int:
        """Devices that the run uses on this machine."""
        return max(1, len(self.strategy.parallel_devices))

    @property
    def device_ids(self) -> list[int]:
        """Numbers of the devices that the run uses on this machine; counted from 0 for devices without a number."""
        devices = self.strategy.parallel_devices
        numbers: list[int | None] = [device.index for device in devices]  # torch's stubs leave None out
        return [place if number is None else number for place, number in enumerate(numbers)] or [0]

    @property
    def precision(self) -> str:
        """The name of the precision, such as `"bf16-mixed"`."""
        return self.strategy.precision_plugin.name

    @property
    def model(self) -> Any:
        """The module in the strategy's wrapper while a stage runs, else the module itself."""
        return getattr(self.strategy, "model", self.module) if self.is_running else self.module

    @property
    def lightning_module(self) -> Any:
        """The same as `module`, by the name that it has elsewhere."""
        return self.module

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers of `configure_optimizers`, while `fit` runs."""
        return self.strategy.optimizers

    @property
    def state(self) -> TrainerState:
        """The activity of this Trainer: its function, the stage within it, and how that stands."""
        return TrainerState(self.stage, self._running_stage(), self.status)

    def _running_stage(self) -> str | None:
        if self.is_running and self.sanity_checking:
            return "sanity_check"
        stages = {"train": self.training, "validate": self.validating, "test": self.testing, "predict": self.predicting}
        return next((name for name, runs in stages.items() if runs), None)

    @property
    def training(self) -> bool:
        """True while `fit` runs and neither validates nor checks sanity."""
        return self._runs("fit") and self.metrics is self.logged.train and not self.sanity_checking

    @property
    def validating(self) -> bool:
        """True while validation runs, also that within `fit`; not the sanity check."""
        within_fit = self._runs("fit") and self.metrics is not self.logged.train and not self.sanity_checking
        return self._runs("validate") or within_fit

    @property
    def testing(self) -> bool:
        """True while `test` runs."""
        return self._runs("test")

    @property
    def predicting(self) -> bool:
        """True while `predict` runs."""
        return self._runs("predict")

    @property
    def checkpoint_callback(self) -> ModelCheckpoint | None:
        """The first ModelCheckpoint; the one that is there by default if the user has brought none."""
        from core.trainer.callbacks.model_checkpoint import ModelCheckpoint

        return next((callback for callback in self.callbacks if isinstance(callback, ModelCheckpoint)), None)

    @property
    def early_stopping_callback(self) -> EarlyStopping | None:
        """The first EarlyStopping, if there is one."""
        from core.trainer.callbacks.early_stopping import EarlyStopping

        return next((callback for callback in self.callbacks if isinstance(callback, EarlyStopping)), None)

    @property
    def checkpoint_callbacks(self) -> list[ModelCheckpoint]:
        """All of them."""
        from core.trainer.callbacks.model_checkpoint import ModelCheckpoint

        return [callback for callback in self.callbacks if isinstance(callback, ModelCheckpoint)]

    @property
    def early_stopping_callbacks(self) -> list[EarlyStopping]:
        """All of them."""
        from core.trainer.callbacks.early_stopping import EarlyStopping

        return [callback for callback in self.callbacks if isinstance(callback, EarlyStopping)]

    @property
    def progress_bar_callback(self) -> ProgressBar | None:
        """The progress bar, if there is one."""
        from core.trainer.callbacks.progress_bar import ProgressBar

        return next((callback for callback in self.callbacks if isinstance(callback, ProgressBar)), None)

    @property
    def received_sigterm(self) -> bool:
        """True if SIGTERM has come in this stage, or in the last one."""
        return self.signals.signal == SIGTERM

    @property
    def interrupted(self) -> bool:
        """True if a signal such as Ctrl-C has come in this stage, or in the last one, which ends it."""
        return self.signals.signal is not None

    def _runs(self, stage: Stage) -> bool:
        return self.is_running and self.stage == stage
