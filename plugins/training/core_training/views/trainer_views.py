"""The Trainer as its modules, callbacks and users see it while it runs, and afterwards."""

from __future__ import annotations

from signal import SIGTERM
from typing import TYPE_CHECKING, Any, NamedTuple

from core.contract import SetupHost
from core_training.views.data_views import DataViews

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch.optim import Optimizer

    from core.contract import CheckpointIO, GradientClipping, PathLike, Stage, TrainingStep
    from core.fabric import Fabric, WeightStream
    from core.session import Session
    from core_training.hooks.callback import Callback
    from core_training.hooks.events import Events
    from core_training.hooks.loop_policy import LoopPolicy
    from core_training.profilers import Profiler
    from core_training.run import Status
    from core_training.settings.options import Amount
    from core_training.signals.interruption import SignalGuard


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

    @property
    def should_stop(self) -> bool:
        """Set it to True to stop training: on one process after the running step, on several within
        half a second.

        On several GPUs it takes up to a second. Ranks agree on it at steps that all of them know
        beforehand, so that one may set it alone.
        """
        return self.run.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.run.should_stop = value

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches of an accumulation window. A callback may set it from one epoch to the next."""
        return self.run.accumulate_grad_batches

    @accumulate_grad_batches.setter
    def accumulate_grad_batches(self, value: int) -> None:
        self.run.accumulate_grad_batches = value

    @property
    def callbacks(self) -> list[Callback]:
        """All callbacks, in the order in which they are called; those that the module brings for
        this stage too.
        """
        return self.run.callbacks

    @callbacks.setter
    def callbacks(self, value: list[Callback]) -> None:
        self.run.callbacks = value

    @property
    def profiler(self) -> Profiler | None:
        """Measures where the time goes, from the next stage on."""
        return self.run.profiler

    @profiler.setter
    def profiler(self, value: Profiler | None) -> None:
        self.run.profiler = value

    @property
    def loop_policy(self) -> LoopPolicy:
        """The choices of the loops where trainers differ; a subclass sets its own."""
        return self.run.loop_policy

    @loop_policy.setter
    def loop_policy(self, value: LoopPolicy) -> None:
        self.run.loop_policy = value

    # limits ---------------------------------------------------------------------------------------

    @property
    def max_epochs(self) -> int | None:
        """The limit; -1 and None for none."""
        return self.options.max_epochs

    @property
    def max_steps(self) -> int:
        """The limit in optimizer steps; -1 for none."""
        return self.options.max_steps

    @property
    def limit_train_batches(self) -> Amount:
        """Batches of a training epoch: a number, a fraction, or None for all."""
        return self.options.limit_train_batches

    @property
    def limit_val_batches(self) -> Amount:
        """Likewise of a validation run."""
        return self.options.limit_val_batches

    @property
    def limit_test_batches(self) -> Amount:
        """Likewise of a test run."""
        return self.options.limit_test_batches

    @property
    def limit_predict_batches(self) -> Amount:
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
    def val_check_interval(self) -> Amount:
        """Batches between validation runs, or a fraction of an epoch."""
        return self.options.val_check_interval

    @property
    def clipping(self) -> GradientClipping | None:
        """The gradient clipping of this run."""
        return self.options.clipping

    @property
    def fast_dev_run(self) -> int:
        """Batches of each stage in a quick run; 0 if this is none."""
        return self.run.fast_dev_run

    # the backend ----------------------------------------------------------------------------------

    @property
    def fabric(self) -> Fabric:
        """The Fabric that resolved the strategy, and joins the ranks."""
        return self.run.fabric

    @property
    def session(self) -> Session:
        """The strategy's session: what was set up, and states as a whole."""
        return self.run.fabric.session

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
        """Numbers of the devices that the run uses on this machine; counted from 0 for devices
        without a number.
        """
        numbers: list[int | None] = [device.index for device in self.strategy.parallel_devices]
        if None in numbers or not numbers:  # never in torch's stubs
            return list(range(self.num_devices))
        return numbers  # type: ignore[return-value]

    @property
    def precision(self) -> str:
        """The name of the precision, such as `"bf16-mixed"`."""
        return self.strategy.precision_plugin.name

    # the stage ------------------------------------------------------------------------------------

    @property
    def stage(self) -> Stage | None:
        """`"fit"`, `"validate"`, `"test"` or `"predict"`, also after its end; None before the first
        of them.
        """
        return self.run.stage

    @property
    def state(self) -> TrainerState:
        """The activity of this Trainer: its function, the stage within it, and how that stands."""
        return TrainerState(self.stage, self._running_stage(), self.run.status)

    @property
    def is_running(self) -> bool:
        """True from a stage's beginning to its end, in each process that runs it."""
        return self.run.is_running

    @property
    def trains(self) -> bool:
        """True if this stage needs optimizers."""
        return self.run.trains

    @property
    def sanity_checking(self) -> bool:
        """True while the sanity check runs."""
        return self.run.sanity_checking

    @property
    def training(self) -> bool:
        """True while `fit` runs and neither validates nor checks sanity."""
        return self._running_stage() == "train"

    @property
    def validating(self) -> bool:
        """True while validation runs, also that within `fit`; not the sanity check."""
        return self._running_stage() == "validate"

    @property
    def testing(self) -> bool:
        """True while `test` runs."""
        return self._running_stage() == "test"

    @property
    def predicting(self) -> bool:
        """True while `predict` runs."""
        return self._running_stage() == "predict"

    @property
    def signals(self) -> SignalGuard:
        """The signals of this stage, or of the last one."""
        return self.run.signals

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

    @property
    def events(self) -> Events:
        """The listeners of each hook, from the stage's beginning on."""
        return self.run.events

    @property
    def prints_results(self) -> bool:
        """True if the progress bar is to show the results of an evaluation."""
        return self.run.prints_results

    @property
    def ckpt_path(self) -> PathLike | None:
        """The checkpoint that this stage began with; None without one. A `setup` hook may set
        it.
        """
        return self.run.ckpt_path

    @ckpt_path.setter
    def ckpt_path(self, value: PathLike | None) -> None:
        self.run.ckpt_path = value

    @property
    def default_root_dir(self) -> str:
        """The folder for checkpoints and logs."""
        return self.run.default_root_dir

    @default_root_dir.setter
    def default_root_dir(self, value: str) -> None:
        self.run.default_root_dir = value

    @property
    def log_dir(self) -> str:
        """Folder of this run: that of the first logger which has one, or else `default_root_dir`.

        The same on all ranks while a stage runs. Asking a logger for its folder makes one.
        """
        return self.run.log_dir

    def _running_stage(self) -> str | None:
        run = self.run
        if not run.is_running:
            return None
        if run.sanity_checking:
            return "sanity_check"
        if run.stage != "fit":
            return run.stage
        return "train" if run.metrics is run.logged.train else "validate"

    # module and optimizers ------------------------------------------------------------------------

    @property
    def module(self) -> Any:
        """The user's own module; None before the first stage."""
        if self.run.stage is None:
            return None
        return self.run.module

    @property
    def lightning_module(self) -> Any:
        """The same as `module`, by the name that it has elsewhere."""
        return self.module

    @property
    def model(self) -> Any:
        """The module in the strategy's wrapper while a stage runs, else the module itself."""
        if not self.is_running:
            return self.module
        return getattr(self.strategy, "model", self.module)

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers of `configure_optimizers`, while `fit` runs."""
        return self.strategy.optimizers

    @property
    def wrapped_optimizers(self) -> Sequence[Optimizer]:
        """The optimizers as a module sees them in manual optimization: their `step` goes through
        the strategy.
        """
        return self.run.wrapped_optimizers

    @property
    def running_step(self) -> TrainingStep | None:
        """How one batch is trained, while `fit` runs."""
        return self.run.running_step

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
        from core_training.state import saving

        save = saving.save_after_fit
        if self.run.is_running:
            save = saving.save_at_step
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
        from core_training.state import snapshot

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
