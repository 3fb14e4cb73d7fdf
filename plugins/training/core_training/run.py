"""A run: one stage of one Trainer."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeVar

import torch
from torch import nn

from core.contract import Capability
from core_training.hooks.loop_policy import LoopPolicy
from core_training.signals.interruption import SignalGuard

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch.optim import Optimizer

    from core.contract import Logger, PathLike, SetupHost, Stage, Strategy, TrainingStep
    from core.fabric import Fabric, FabricOptimizer
    from core.session import Session
    from core_training.hooks.callback import Callback
    from core_training.hooks.events import Events
    from core_training.logging.metric_values import MetricValues, Origin
    from core_training.profilers import Profiler
    from core_training.progress import Progress
    from core_training.settings.options import TrainerOptions
    from core_training.settings.resume import Resume
    from core_training.stage_data.datamodule import DataModule
    from core_training.stage_data.loaders import Loaders

P = ParamSpec("P")
R = TypeVar("R")
Status: TypeAlias = Literal["initializing", "running", "finished", "interrupted"]
Frozen: TypeAlias = tuple[tuple[int, ...], str, float, float]
"""Shape, dtype, sum and sum of absolute values of a parameter."""


@dataclass(frozen=True)
class Position:
    """The state of a run that is nowhere to be found once its stage is over.

    Attributes:
        rank: this rank's shard of the data, random state and running metrics.
        loaders: the position within the data, or nothing.
    """

    rank: dict[str, object]
    loaders: dict[str, object]


@dataclass(frozen=True)
class FinishedFit:
    """The state of a successful fit that a later checkpoint needs. It occupies memory until the
    next stage.

    Attributes:
        optimizers: in the order of `configure_optimizers`.
        lr_schedulers: of theirs.
        position: at the end of `fit`.
        rank_state: what this rank of a strategy keeps for itself, on the CPU.
    """

    optimizers: list[Optimizer]
    lr_schedulers: list[Any]
    position: Position
    rank_state: dict[str, object] | None


class StageState:
    """The state of a run that begins anew with each stage.

    Attributes:
        stage_loggers: those of this rank, once it is known which one that is.
        has_published_step: values of single steps were handed to them.
        metrics: where `self.log` goes now.
        events: the listeners of hooks, from the beginning of the stage in the worker on.
        signals: answers Ctrl-C and its like.
        wake: is called when a stop is asked for while the training loop runs.
        window_of: the accumulation window of an epoch, by its number, where a callback schedules
            it.
        is_running: True from the group's beginning to its end.
        sanity_checking: True while the sanity check runs.
        running_step: how one batch is trained, while `fit` runs.
        began: when the stage was called.
        stop_reason: of whoever asked on this rank, a sentence; empty if it gave none.
        saves: the optimizer steps of checkpoints that a run can go on from, by path, the newest
            last.
        pending_saves: (path, weights_only, the user's line) of checkpoints that wait for the end of
            the window.
        restored_random_state: to put back before the first batch.
        random_state_at_opening: before the training loader was opened, if a resumed run has to open
            it alike.
        settings: what the program says of rates, formats and the like; of those that were restored,
            the checkpoint's.
        finished_fit: what a later save needs, once `fit` has ended well.
        described_frozen: the values that `save_only="trainable"` leaves out, and versions of them;
            None before a save.
    """

    events: Events
    wake: Callable[[], None] | None = None
    window_of: Callable[[int], int] | None = None
    has_published_step: bool = False
    is_running: bool = False
    sanity_checking: bool = False
    running_step: TrainingStep | None = None
    stop_reason: str = ""
    restored_random_state: dict[str, Any] | None = None
    random_state_at_opening: dict[str, object] | None = None
    finished_fit: FinishedFit | None = None
    described_frozen: tuple[dict[str, int], dict[str, Frozen]] | None = None
    _wrapped_optimizers: list[FabricOptimizer] | None = None


@dataclass(eq=False, kw_only=True)
class Run(StageState):
    """One stage of one Trainer, from the user's call to its end. Loops, state and searches work on
    it.

    The Trainer makes one for each stage by `dataclasses.replace` of the one before: what is passed
    here goes on from stage to stage, all else begins anew. The first one has no stage, and holds
    the Trainer's arguments.

    Attributes:
        fabric: joins the ranks, wraps optimizers, prints.
        options: of the Trainer.
        callbacks: of this stage, those of the module too.
        loggers: all of them, whichever rank this is.
        profiler: or none.
        default_root_dir: where checkpoints and logs go.
        fast_dev_run: batches of each stage in a quick run; 0 if it is none.
        progress: counts on from one `fit` to the next.
        logged: the newest values of everything that was logged.
        accumulate_grad_batches: batches of an accumulation window; callbacks may change it between
            epochs.
        loop_policy: what the loops do where one Trainer differs from another.
        trainer: the object that hooks and the strategy get, from the first stage on.
        stage: None before the first one.
        module: the user's own; an empty one before the first stage.
        datamodule: or none.
        loaders: of this stage; none before the first one.
        ckpt_path: what the user passed; from the beginning of the stage on, the checkpoint that it
            stands for.
        resume: the parts of it with which `fit` goes on; None for all.
        counts_on: `fit` trains the module of the stage before on, from that one's counters.
        is_asked_to_stop: what `Trainer.should_stop` shows.
        status: how the stage stands.
        described_module: whose hyperparameters the loggers have.
        returns_predictions: `predict` collects what `predict_step` returns.
        prints_results: the progress bar shows the results of an evaluation.
    """

    fabric: Fabric
    options: TrainerOptions
    callbacks: list[Callback]
    loggers: list[Logger]
    profiler: Profiler | None
    default_root_dir: str
    fast_dev_run: int
    progress: Progress
    logged: MetricValues
    accumulate_grad_batches: int
    loaders: Loaders
    loop_policy: LoopPolicy = field(default_factory=LoopPolicy)
    trainer: SetupHost | None = None
    stage: Stage | None = None
    module: nn.Module = field(default_factory=nn.Module)
    datamodule: DataModule | None = None
    ckpt_path: PathLike | None = None
    resume: Resume | None = None
    counts_on: bool = False
    is_asked_to_stop: bool = False
    status: Status = "initializing"
    described_module: nn.Module | None = None
    returns_predictions: bool = True
    prints_results: bool = True

    def __post_init__(self) -> None:
        self.began = datetime.now(UTC)
        self.saves: dict[str, int] = {}
        self.pending_saves: list[tuple[PathLike, bool, str]] = []
        self.settings: dict[str, object] = {}
        self.metrics = self.logged.train
        self.signals = SignalGuard(self.progress)
        self.stage_loggers = self.loggers

    @property
    def strategy(self) -> Strategy:
        """The strategy that trains the module."""
        return self.fabric.strategy

    @property
    def session(self) -> Session:
        """The strategy's session: what was set up, and states as a whole."""
        return self.fabric.session

    @property
    def newest_save(self) -> tuple[str, int] | None:
        """The newest of `saves`; None if nothing is saved yet."""
        return next(reversed(self.saves.items()), None)

    @property
    def trains(self) -> bool:
        """True if this stage needs optimizers."""
        return self.stage == "fit"

    @property
    def log_dir(self) -> str:
        """Folder of the first logger that has one, or else `default_root_dir`."""
        folders = (logger.log_dir for logger in self.stage_loggers)
        return next(filter(None, folders), self.default_root_dir)

    # stops ----------------------------------------------------------------------------------------

    @property
    def should_stop(self) -> bool:
        """True to stop training. Ranks agree on it at steps that all of them know beforehand."""
        return self.is_asked_to_stop

    @should_stop.setter
    def should_stop(self, stops: bool) -> None:
        self.is_asked_to_stop = stops
        if stops and self.wake is not None:
            self.wake()

    @property
    def has_reached_least(self) -> bool:
        """True if `min_epochs` and `min_steps` are reached, the running epoch counted if all its
        batches are trained.

        A stop by request waits for that.
        """
        options, progress = self.options, self.progress
        is_trained = progress.epoch_is_trained or progress.epoch_is_over
        return (
            progress.epoch + is_trained >= options.min_epochs
            and progress.global_step >= options.min_steps
        )

    # the accumulation window ----------------------------------------------------------------------

    @property
    def window(self) -> int:
        """Batches of an accumulation window, as the loop counts them: a compiled step is handed
        whole windows.
        """
        if Capability.COMPILED_STEP in self.strategy.capabilities:
            return 1
        return self.accumulate_grad_batches

    def set_window(self) -> None:
        """All ranks, once there are loaders. The running epoch's window, if `global_batch_size` or
        a callback says.
        """
        if self.window_of is not None:
            self.accumulate_grad_batches = self.window_of(self.progress.epoch)
        elif self.loaders.global_batch is not None:
            self.accumulate_grad_batches = self.loaders.global_batch.num_accumulated

    def count_unfinished(self) -> int:
        """Batches of a window whose optimizer step is still to come."""
        if not self.trains:
            return 0
        return self.progress.batch - self.progress.window_start

    # metrics --------------------------------------------------------------------------------------

    def origin_of(self, name: str) -> Origin | None:
        """The event that renews this metric, as this rank sees it. A name that nobody knows yet may
        be validation's.
        """
        origin, validation = self.logged.origin(name), self.logged.evaluation["validation"]
        if origin is None and self.loaders.validation and not validation.entries:
            return "validation"
        return origin

    # profiling ------------------------------------------------------------------------------------

    def profile(self, action: str) -> AbstractContextManager[None]:
        """A context whose time the profiler reports under this name; without a profiler it does
        nothing.
        """
        if self.profiler is None:
            return nullcontext()
        return self.profiler.profile(action)

    def profiled(self, action: str, function: Callable[P, R]) -> Callable[P, R]:
        """The function, measured if there is a profiler. Called once a stage."""
        if self.profiler is None:
            return function
        return self.profiler.wrap(action, function)

    # data -----------------------------------------------------------------------------------------

    def make_transfer(self, dataloader_idx: int = 0) -> Callable[[Any], Any] | None:
        """The function that moves a loader's batches to the device; None if they are there."""
        from core_training.stage_data.batch_transfer import batch_transfer

        transfer = batch_transfer(self.strategy, (self.datamodule, self.module), dataloader_idx)
        return transfer and self.profiled("transfer_batch", transfer)

    # optimizers -----------------------------------------------------------------------------------

    @property
    def wrapped_optimizers(self) -> list[FabricOptimizer]:
        """The optimizers as a module sees them in manual optimization: their `step` goes through
        the strategy.
        """
        if [each.optimizer for each in self._wrapped_optimizers or ()] != self.strategy.optimizers:
            self._wrapped_optimizers = [
                self.fabric.wrap_optimizer(
                    optimizer, on_step=self._count_step, before_step=self._prepare_manual_step
                )
                for optimizer in self.strategy.optimizers
            ]
        return self._wrapped_optimizers or []

    def end(self) -> None:
        """The stage is over. Idempotent. Nothing here holds optimizers or wrappers any more."""
        self._wrapped_optimizers = None
        self.logged.end_stage()
        if self.running_step is not None:
            # Loop and step hold each other: a wrapper would outlive its process group until garbage
            # is collected.
            self.running_step.release()
        self.running_step, self.is_running = None, False
        self.loaders.end_workers()

    def _prepare_manual_step(self, optimizer: Optimizer) -> None:
        step = self.running_step
        if step is not None and step.manual and step.before_optimizer_step is not None:
            self.strategy.precision_plugin.unscale_gradients(optimizer)
            step.before_optimizer_step(optimizer)

    def _count_step(self, updated: int) -> None:
        """A step that the module asked for, perhaps in the middle of its training step."""
        self.progress.global_step += updated
        # else what the module computes next would use copies of the old weights
        torch.clear_autocast_cache()
