"""The Trainer as its modules, callbacks and users see it while it runs, and afterwards."""

from __future__ import annotations

from signal import SIGTERM
from typing import TYPE_CHECKING, Any, NamedTuple

from core.contract import SetupHost
from core.trainer.views.data_views import DataViews, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch.optim import Optimizer

    from core.contract import CheckpointIO, GradientClipping, PathLike, Stage, TrainingStep
    from core.fabric import Fabric, WeightStream
    from core.session import Session
    from core.trainer.hooks.callback import Callback
    from core.trainer.hooks.events import Events
    from core.trainer.profilers import Profiler
    from core.trainer.run import Status
    from core.trainer.signals.interruption import SignalGuard


class TrainerState(NamedTuple):
    """The activity of a Trainer.

    Attributes:
        fn: `"fit"`, `"validate"`, `"test"` or `"predict"`, also after its end; None before the
            first of them.
        stage: `"train"`, `"sanity_check"`, `"validate"`, `"test"` or `"predict"` while it runs,
            else None.
        status: `"initializing"`, `"running"`, `"finished"`, or `"interrupted"` by an exception or a
            signal.
    """

    fn: Stage | None
    stage: str | None
    status: Status


class TrainerViews(DataViews, SetupHost):
    """The part of `Trainer` that modules and callbacks use: what its run is, does, and has done."""

    # what the user may set ------------------------------------------------------------------------

    should_stop: bool = shown("run.should_stop", can_be_set=True)
    """Set it to True to stop training: on one process after the running step, on several within
    half a second.

    On several GPUs it takes up to a second. Ranks agree on it at steps that all of them know
    beforehand, so that one may set it alone.
    """

    accumulate_grad_batches: int = shown("run.accumulate_grad_batches", can_be_set=True)
    """Batches of an accumulation window. A callback may set it from one epoch to the next."""

    callbacks: list[Callback] = shown("run.callbacks", can_be_set=True)
    """All callbacks, in the order in which they are called; those that the module brings for this
    stage too.
    """

    profiler: Profiler | None = shown("run.profiler", can_be_set=True)
    """Measures where the time goes, from the next stage on."""

    # limits ---------------------------------------------------------------------------------------

    max_epochs: int | None = shown("run.options.max_epochs")
    """The limit; -1 and None for none."""

    max_steps: int = shown("run.options.max_steps")
    """The limit in optimizer steps; -1 for none."""

    limit_train_batches: int | float | None = shown("run.options.limit_train_batches")
    """Batches of a training epoch: a number, a fraction, or None for all."""

    limit_val_batches: int | float | None = shown("run.options.limit_val_batches")
    """Likewise of a validation run."""

    limit_test_batches: int | float | None = shown("run.options.limit_test_batches")
    """Likewise of a test run."""

    limit_predict_batches: int | float | None = shown("run.options.limit_predict_batches")
    """Likewise of a prediction run."""

    log_every_n_steps: int = shown("run.options.log_every_n_steps")
    """Optimizer steps between step values that go to the loggers."""

    check_val_every_n_epoch: int | None = shown("run.options.check_val_every_n_epoch")
    """Epochs between validation runs."""

    val_check_interval: int | float | None = shown("run.options.val_check_interval")
    """Batches between validation runs, or a fraction of an epoch."""

    clipping: GradientClipping | None = shown("run.options.clipping")
    """The gradient clipping of this run."""

    fast_dev_run: int = shown("run.fast_dev_run")
    """Batches of each stage in a quick run; 0 if this is none."""

    # the backend ----------------------------------------------------------------------------------

    fabric: Fabric = shown("run.fabric")
    """The Fabric that resolved the strategy, and joins the ranks."""

    session: Session = shown("run.fabric.session")
    """The strategy's session: what was set up, and states as a whole."""

    num_nodes: int = shown("strategy.num_nodes")
    """Number of machines."""

    @property
    def num_devices(self) -> int:
        """Devices that the run uses on this machine."""
        return max(1, len(self.strategy.parallel_devices))

    @property
    def device_ids(self) -> list[int]:
        """Numbers of the devices that the run uses on this machine; counted from 0 for devices
        without a number.
        """
        # int in its stubs
        numbers: list[int | None] = [device.index for device in self.strategy.parallel_devices]
        return [place if number is None else number for place, number in enumerate(numbers)] or [0]

    precision: str = shown("strategy.precision_plugin.name")
    """The name of the precision, such as `"bf16-mixed"`."""

    # the stage ------------------------------------------------------------------------------------

    stage: Stage | None = shown("run.stage")
    """`"fit"`, `"validate"`, `"test"` or `"predict"`, also after its end; None before the first of
    them.
    """

    status: Status = shown("run.status")
    """The status of the stage."""

    @property
    def state(self) -> TrainerState:
        """The activity of this Trainer: its function, the stage within it, and how that stands."""
        return TrainerState(self.stage, self._running_stage(), self.status)

    is_running: bool = shown("run.is_running")
    """True from a stage's beginning to its end, in each process that runs it."""

    trains: bool = shown("run.trains")
    """True if this stage needs optimizers."""

    sanity_checking: bool = shown("run.sanity_checking")
    """True while the sanity check runs."""

    @property
    def training(self) -> bool:
        """True while `fit` runs and neither validates nor checks sanity."""
        return (
            self._runs("fit")
            and self.run.metrics is self.run.logged.train
            and not self.run.sanity_checking
        )

    @property
    def validating(self) -> bool:
        """True while validation runs, also that within `fit`; not the sanity check."""
        run = self.run
        within_fit = (
            self._runs("fit") and run.metrics is not run.logged.train and not run.sanity_checking
        )
        return self._runs("validate") or within_fit

    @property
    def testing(self) -> bool:
        """True while `test` runs."""
        return self._runs("test")

    @property
    def predicting(self) -> bool:
        """True while `predict` runs."""
        return self._runs("predict")

    signals: SignalGuard = shown("run.signals")
    """The signals of this stage, or of the last one."""

    @property
    def received_sigterm(self) -> bool:
        """True if SIGTERM has come in this stage, or in the last one."""
        return self.run.signals.signal == SIGTERM

    @property
    def interrupted(self) -> bool:
        """True if a signal such as Ctrl-C has come in this stage, or in the last one, which ends
        it.
        """
        return self.run.signals.signal is not None

    events: Events = shown("run.events")
    """The listeners of each hook, from the stage's beginning on."""

    prints_results: bool = shown("run.prints_results")
    """True if the progress bar is to show the results of an evaluation."""

    ckpt_path: PathLike | None = shown("run.ckpt_path", can_be_set=True)
    """The checkpoint that this stage began with; None without one. A `setup` hook may set it."""

    default_root_dir: str = shown("run.default_root_dir", can_be_set=True)
    """The folder for checkpoints and logs."""

    log_dir: str = shown("run.log_dir")
    """Folder of this run: that of the first logger which has one, or else `default_root_dir`.

    The same on all ranks while a stage runs. Asking a logger for its folder makes one.
    """

    def _running_stage(self) -> str | None:
        if self.is_running and self.sanity_checking:
            return "sanity_check"
        stages = {
            "train": self.training,
            "validate": self.validating,
            "test": self.testing,
            "predict": self.predicting,
        }
        return next((name for name, runs in stages.items() if runs), None)

    def _runs(self, stage: Stage) -> bool:
        return self.run.is_running and self.run.stage == stage

    # module and optimizers ------------------------------------------------------------------------

    @property
    def module(self) -> Any:
        """The user's own module; None before the first stage."""
        return self.run.module if self.run.stage is not None else None

    lightning_module: Any = shown("module")
    """The same as `module`, by the name that it has elsewhere."""

    @property
    def model(self) -> Any:
        """The module in the strategy's wrapper while a stage runs, else the module itself."""
        return getattr(self.strategy, "model", self.module) if self.is_running else self.module

    optimizers: list[Optimizer] = shown("strategy.optimizers")
    """The optimizers of `configure_optimizers`, while `fit` runs."""

    wrapped_optimizers: Sequence[Optimizer] = shown("run.wrapped_optimizers")
    """The optimizers as a module sees them in manual optimization: their `step` goes through the
    strategy.
    """

    running_step: TrainingStep | None = shown("run.running_step")
    """How one batch is trained, while `fit` runs."""

    # actions --------------------------------------------------------------------------------------

    def profile(self, action: str) -> AbstractContextManager[None]:
        """A context whose time the profiler reports under this name; without a profiler it does
        nothing.
        """
        return self.run.profile(action)

    def save_checkpoint(self, path: PathLike, weights_only: bool = False) -> None:
        """All ranks. Save everything from which a run can go on exactly.

        A checkpoint describes the state between two optimizer steps: asked for within an
        accumulation window, it is written at the window's end. After `fit` has returned it holds
        the optimizers until the next stage begins. Where they have ended with `fit` (ranks that a
        launcher made for it alone, engines), such a checkpoint can be evaluated only, and a warning
        says so. Where a launcher has made the ranks for `fit` alone, the caller saves.

        Args:
            path: a local path or a URL.
            weights_only: leave out what only training needs. Such a checkpoint can be evaluated,
                not resumed.

        Raises:
            CheckpointError: it can't be written; what was at `path` is untouched.
            ConfigurationError: there is no module yet.
        """
        from core.trainer.state import saving

        save = saving.save_at_step if self.run.is_running else saving.save_after_fit
        save(self.run, path, weights_only=weights_only)

    def weights(
        self,
        *,
        dtype: torch.dtype | None = None,
        names: Iterable[str] | Mapping[str, str] | None = None,
    ) -> WeightStream:
        """All ranks, in a hook between two steps. The module's weights as whole tensors; see
        `Fabric.weights`.

        Raises:
            ConfigurationError: no stage runs, so that the strategy has no module.
        """
        run = self.run
        return run.fabric.weights(
            run.module, dtype=dtype, names=names, version=lambda: run.progress.global_step
        )

    def save_snapshot(self, path: PathLike, checkpoint_io: CheckpointIO) -> None:
        """All ranks, in a hook between two optimizer steps. Save by another CheckpointIO than the
        strategy's.

        For callbacks that keep states by themselves. Such a state isn't the newest checkpoint in
        the eyes of the run, which names that one to the user when it ends early.

        Args:
            path: what `checkpoint_io` understands.
            checkpoint_io: saves everything from which a run can continue exactly.
        """
        from core.trainer.state import snapshot

        snapshot.save_by(self.run, checkpoint_io, path)

    # callbacks by kind ----------------------------------------------------------------------------

    @property
    def checkpoint_callback(self) -> Any:
        """The first ModelCheckpoint; the one that is there by default if the user has brought
        none.
        """
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def checkpoint_callbacks(self) -> list[Any]:
        """All of them."""
        return self._found_as("checkpoint_callback")

    @property
    def early_stopping_callback(self) -> Any:
        """The first EarlyStopping, if there is one."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def early_stopping_callbacks(self) -> list[Any]:
        """All of them."""
        return self._found_as("early_stopping_callback")

    @property
    def progress_bar_callback(self) -> Any:
        """The progress bar, if there is one."""
        return next(iter(self._found_as("progress_bar_callback")), None)

    def _found_as(self, name: str) -> list[object]:
        return [callback for callback in self.callbacks if callback.found_as == name]
