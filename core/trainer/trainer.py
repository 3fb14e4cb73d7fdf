"""Our loop, any strategy."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import torch
from torch import nn

from core.contract import Capability, ConfigurationError, ModuleError
from core.fabric import Ranks
from core.trainer.data.data_views import DataViews
from core.trainer.logging.logged import Logged
from core.trainer.loops.progress import Progress
from core.trainer.loops.run_views import RunViews
from core.trainer.settings.options import TrainerOptions
from core.trainer.settings.unknown_names import answer_attribute, answers_unknown

# What only a trainer that is made, or that runs, needs is imported in its methods: a program that takes Trainer from
# `core` and lists its options, or its help, waits for none of it.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import timedelta

    from torch.optim import Optimizer

    from core.contract import (
        Accelerator,
        ClippingAlgorithm,
        Devices,
        GradientClipping,
        Logger,
        PathLike,
        Stage,
        Strategy,
        TrainingStep,
    )
    from core.session import Session
    from core.trainer.callbacks.callback import Callback
    from core.trainer.data.datamodule import DataModule
    from core.trainer.data.sources import Role, Source
    from core.trainer.hooks.events import Events
    from core.trainer.loops.fit_call import FitCall
    from core.trainer.profilers import Profiler
    from core.trainer.signals.stop_agreement import StopAgreement
    from core.trainer.state.finished_fit import FinishedFit
    from core.watch import Watch

P = ParamSpec("P")
R = TypeVar("R")


class Trainer(Ranks, RunViews, DataViews, Logged):
    """Trains and evaluates a module. One argument chooses the backend, and nothing else changes with it.

    The public attributes `strategy`, `module`, `progress`, `callbacks`, `loggers`, `callback_metrics` and `should_stop`
    are there for modules and callbacks to use.
    """

    @answers_unknown
    def __init__(
        self,
        *,
        accelerator: Accelerator | str = "auto",
        strategy: Strategy | str = "auto",
        devices: Devices = "auto",
        num_nodes: int | Literal["auto"] = 1,
        precision: str | int | None = None,
        logger: bool | Logger | str | Iterable[Logger | str] | None = None,
        callbacks: Callback | str | Sequence[Callback | str] | None = None,
        max_epochs: int | None = None,
        min_epochs: int = 0,
        max_steps: int = -1,
        min_steps: int = 0,
        max_time: timedelta | Mapping[str, int] | str | None = None,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        overfit_batches: int | float = 0,
        fast_dev_run: bool | int = False,
        val_check_interval: int | float | timedelta | Mapping[str, int] | str | None = None,
        check_val_every_n_epoch: int | None = 1,
        reload_dataloaders_every_n_epochs: int = 0,
        num_sanity_val_steps: int | None = None,
        log_every_n_steps: int | None = None,
        enable_checkpointing: bool | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool | None = None,
        accumulate_grad_batches: int = 1,
        global_batch_size: int | None = None,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: ClippingAlgorithm | None = None,
        deterministic: bool | Literal["warn"] | None = None,
        benchmark: bool | None = None,
        detect_anomaly: bool = False,
        terminate_on_nan: bool = False,
        inference_mode: bool = True,
        sync_batchnorm: bool = False,
        compile: bool | Mapping[str, Any] = False,
        barebones: bool = False,
        use_distributed_sampler: bool = True,
        seed_samples: bool = False,
        plugins: Any = None,
        profiler: Profiler | Literal["simple", "advanced", "pytorch"] | None = None,
        default_root_dir: PathLike | None = None,
        watch: bool | Watch | None = None,
    ) -> None:
        """Check all arguments; nothing is started yet.

        Args:
            accelerator: `"cpu"`, `"gpu"`, `"cuda"`, `"mps"`, any registered one, an instance, or `"auto"`.
            strategy: an alias (see `core list-strategies`), an instance with options, or `"auto"`.
            devices: a number, `-1` for all, indices (`[1, 3]`, `"1,3"`), or `"auto"`: every GPU, one process on a CPU.
            num_nodes: machines that take part; `"auto"` for those that a scheduler or torchrun has started on.
            precision: `"32-true"`, `"bf16-mixed"`, `"16-mixed"`, `"64-true"`, ...; None is `"32-true"`.
            logger: aliases (`"tensorboard"`, see `core list-loggers`) or instances, one or several; False for none.
                None and True write a CSV file, in `core_logs` in `default_root_dir`.
            callbacks: one or several callbacks, or names of installed event hooks (entry points of `core.hooks`).
            max_epochs: stop after so many epochs; -1 for no limit. Without any limit, 1000.
            min_epochs: a stop that a callback asks for waits for so many epochs.
            max_steps: stop after so many optimizer steps; -1 for no limit.
            min_steps: a stop that a callback asks for waits for so many optimizer steps.
            max_time: stop after so long: a timedelta, `{"hours": 2}`, or `"DD:HH:MM:SS"`.
            limit_train_batches: batches of a training epoch: a number, or a fraction of them.
            limit_val_batches: likewise of a validation run. 0 leaves it out.
            limit_test_batches: likewise of a test run.
            limit_predict_batches: likewise of a prediction run.
            overfit_batches: train and validate on so many first batches of each loader, or such a fraction, which are
                the same in each epoch: loaders that shuffle stop doing so, with a warning. 0 for all data.
            fast_dev_run: run one batch of everything, or so many, to find mistakes. Nothing is logged or saved.
            val_check_interval: validate every so many batches, after such a fraction of an epoch, or after such a time:
                a timedelta, `{"minutes": 10}`, or `"DD:HH:MM:SS"`.
            check_val_every_n_epoch: validate in every n-th epoch only. None: `val_check_interval` counts batches over
                all epochs.
            reload_dataloaders_every_n_epochs: ask the hooks for new loaders every so many epochs; 0 for never.
            num_sanity_val_steps: validation batches to run before training, to find mistakes early; -1 for all. None
                is 2.
            log_every_n_steps: hand step values to the loggers every so many optimizer steps. None is 50.
            enable_checkpointing: save a checkpoint at the end of every epoch, and keep the newest; or what a
                ModelCheckpoint in `callbacks` says. None is yes, as for the next two, unless `barebones`.
            enable_progress_bar: show a progress bar on rank 0.
            enable_model_summary: print a table of the model on rank 0 when fit begins.
            accumulate_grad_batches: batches whose gradients are averaged for one optimizer step.
            global_batch_size: samples of all ranks together in one optimizer step, whatever their number: the loader's
                `batch_size` is the most that a rank takes at once, and the accumulation window follows.
            gradient_clip_val: clip gradients to this norm, or absolute value.
            gradient_clip_algorithm: `"norm"` or `"value"`.
            deterministic: while a stage runs, use algorithms of torch that give the same in every run, which may be
                slower, and are errors where there is none; `"warn"` only warns of those. See also `seed_everything`.
            benchmark: let cuDNN try its algorithms for each new shape, and use the fastest. None leaves it as it is.
            detect_anomaly: find out which operation has made a NaN in backward. Slow.
            terminate_on_nan: end the run by an error at the first training loss that is NaN or infinite, before
                anything is learned from it. Each step waits for the device. Without it there is a warning, later.
            inference_mode: evaluate under `torch.inference_mode` rather than `torch.no_grad`, if the strategy can.
            sync_batchnorm: let batch norms compute their statistics over all ranks. On GPUs only.
            compile: run the module's steps through `torch.compile`; or a dict of its options. A module that you have
                compiled yourself, by `torch.compile(module)`, is compiled in the same way inside of the strategy's
                wrapper. Names in checkpoints don't change with it.
            barebones: nothing but the loop, to measure what the rest costs: no logger, checkpoints, bar, summary or
                sanity check, and `self.log` does nothing.
            use_distributed_sampler: give each rank its share of the data.
            seed_samples: seed Python's, NumPy's and torch's generators for every training sample that is loaded, so
                that random augmentation doesn't depend on workers and ranks, and goes on exactly after a resume.
            plugins: instances or aliases of a Precision, CheckpointIO, ClusterEnvironment or Launcher.
            profiler: measures where the time goes: `"simple"`, `"advanced"`, `"pytorch"`, or an instance.
            default_root_dir: where checkpoints and logs go; None is the current folder.
            watch: look whether ranks hang, and end the run with a `HangError` that says which one, where and how: a
                `Watch` with limits of your own, False for none. None is True.

        Raises:
            ConfigurationError: arguments that can't be met, with what can.
        """
        # First of all: a local name that is made later is no argument.
        given = dict(locals())
        from core.fabric import Fabric
        from core.trainer.logging.logged_values import LoggedValues
        from core.trainer.logging.metrics import Metrics
        from core.trainer.module.module_callbacks import ModuleCallbacks
        from core.trainer.settings import quick_runs
        from core.trainer.settings.barebones import NoMetrics, check_barebones
        from core.trainer.settings.checks import check_arguments
        from core.trainer.settings.defaults import make_callbacks, make_loggers, make_profiler
        from core.trainer.settings.torch_modes import check_modes
        from core.trainer.signals.interruption import SignalGuard

        if barebones:
            check_barebones(given)
            logger, given["num_sanity_val_steps"] = False, 0
        check_modes(deterministic, benchmark)
        self.options = TrainerOptions.of(given)
        self.fast_dev_run = quick_runs.count_batches(fast_dev_run)
        if self.fast_dev_run:
            self.options = quick_runs.limit_options(self.options, self.fast_dev_run)
        root = default_root_dir
        if root is not None and os.fspath(root).startswith("~"):
            root = os.path.expanduser(root)
        # The Fabric resolves the strategy, which the checks below ask.
        self.fabric = Fabric(
            accelerator=accelerator,
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            plugins=plugins,
            loggers=make_loggers(logger, root),
            compile=compile,
            watch=watch,
        )
        check_arguments(self.options, self.strategy)
        self.default_root_dir = os.fspath(root) if root is not None else os.getcwd()
        if self.fast_dev_run:
            self.fabric.loggers = quick_runs.silence(self.fabric.loggers)
        self.loggers = self.fabric.loggers
        self.profiler = make_profiler(profiler) if profiler is not None else None
        self.callbacks = make_callbacks(
            callbacks,
            enable_progress_bar=not barebones if enable_progress_bar is None else enable_progress_bar,
            enable_model_summary=not barebones if enable_model_summary is None else enable_model_summary,
            enable_checkpointing=not barebones if enable_checkpointing is None else enable_checkpointing,
        )
        if self.fast_dev_run:
            self.callbacks = quick_runs.without_traces(self.callbacks)
        # From here on: what belongs to a run, and is empty before the first one.
        self.progress = Progress()
        self.logged = LoggedValues(NoMetrics if barebones else Metrics, self.progress)
        self.metrics = self.logged.train
        self.signals = SignalGuard(self.progress)
        self.stops: StopAgreement | None = None
        self._should_stop = False
        self.sanity_checking = False
        self.stage: Stage | None = None
        self.status = "initializing"
        self.is_running = False
        self.events: Events  # from the first stage on
        self.module: Any = None  # the user's nn.Module, whose methods no type checker knows
        self.datamodule: DataModule | None = None
        self.loaders: Any = None  # a `Loaders` from the first stage on
        self.accumulate_grad_batches = accumulate_grad_batches
        self.pending_saves: list[tuple[PathLike, bool]] = []
        self.restored_random_state: dict[str, Any] | None = None
        self.random_state_at_opening: dict[str, Any] | None = None
        self.running_step: TrainingStep | None = None
        self._module_callbacks = ModuleCallbacks()
        self.ckpt_path: PathLike | None = None
        self.described_module: nn.Module | None = None
        self.finished_fit: FinishedFit | None = None
        self.returns_predictions = self.tells_results = True
        self._wrapped_optimizers: list[Optimizer] | None = None

    if not TYPE_CHECKING:  # for a type checker, what isn't there stays an error

        def __getattr__(self, name: str) -> Any:
            return answer_attribute(self, name)

    # what the user calls --------------------------------------------------------------------------------------------

    def fit(
        self,
        model: nn.Module,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: DataModule | None = None,
        ckpt_path: PathLike | None = None,
    ) -> None:
        """Train, and validate in between.

        Loaders that aren't passed are those of the data module, or else of the module, if they have hooks for them.

        Args:
            model: a `core.Module`, or any `nn.Module` with `training_step` and `configure_optimizers`.
            train_dataloaders: a loader, or any iterable of batches; several in a dict, a list or a `CombinedLoader`.
                A DataModule may stand here.
            val_dataloaders: one or several of them; without any, there is no validation.
            datamodule: makes all loaders.
            ckpt_path: a checkpoint from which to go on.

        Raises:
            ModuleError: the module lacks what training needs.
            ConfigurationError: no training loader, or something that is none.
            CheckpointError: `ckpt_path` can't be read, or doesn't fit.
        """
        call = self.take_fit_call(model, train_dataloaders, val_dataloaders, datamodule)
        self.should_stop = False
        self._launch("fit", call.module, call.sources, call.datamodule, ckpt_path)

    def validate(
        self,
        model: nn.Module | None = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        ckpt_path: PathLike | None = None,
        verbose: bool = True,
    ) -> list[dict[str, float]]:
        """Run `validation_step` over one or several loaders.

        Args:
            model: with `validation_step`; None is the one that this Trainer ran last, with the weights that it has.
            dataloaders: one or several; if None, those of the data module or the module.
            datamodule: makes them.
            ckpt_path: a checkpoint whose weights are to be used.
            verbose: let the progress bar tell the results.

        Returns:
            What was logged, a dict for each loader.
        """
        from core.trainer.data.sources import VALIDATION
        from core.trainer.module.module import require_method

        module = self._module_or_last(model)
        require_method(module, "validation_step", "validate")
        arguments = self._take_sources(VALIDATION, module, dataloaders, datamodule)
        self.tells_results = verbose
        return self._launch("validate", module, *arguments, ckpt_path)  # type: ignore[no-any-return]

    def test(
        self,
        model: nn.Module | None = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        ckpt_path: PathLike | None = None,
        verbose: bool = True,
    ) -> list[dict[str, float]]:
        """Run `test_step` over one or several loaders; see `validate`."""
        from core.trainer.data.sources import TEST
        from core.trainer.module.module import require_method

        module = self._module_or_last(model)
        require_method(module, "test_step", "test")
        arguments = self._take_sources(TEST, module, dataloaders, datamodule)
        self.tells_results = verbose
        return self._launch("test", module, *arguments, ckpt_path)  # type: ignore[no-any-return]

    def predict(
        self,
        model: nn.Module | None = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        return_predictions: bool | None = None,
        ckpt_path: PathLike | None = None,
    ) -> list[Any] | None:
        """Run `predict_step` over one or several loaders.

        Args:
            model: with `predict_step`; that of `core.Module` calls the module. None is the one that this Trainer ran
                last.
            dataloaders: one or several; if None, those of the data module or the module.
            datamodule: makes them.
            return_predictions: collect what `predict_step` returns; None is True. False saves the memory, for a
                `BasePredictionWriter`.
            ckpt_path: a checkpoint whose weights are to be used.

        Returns:
            What `predict_step` returned, a list of batches on the CPU; with several loaders a list of such lists. On
            rank 0, and so for the caller of every launcher, those of all ranks in the order of the data set, as on one
            device; on the other ranks their own. None with `return_predictions=False`.
        """
        from core.trainer.data.sources import PREDICTION
        from core.trainer.module.module import require_method

        module = self._module_or_last(model)
        if not hasattr(module, "predict_step"):
            require_method(module, "predict_step", "predict")
        arguments = self._take_sources(PREDICTION, module, dataloaders, datamodule)
        self.returns_predictions = return_predictions is not False
        return self._launch("predict", module, *arguments, ckpt_path)  # type: ignore[no-any-return]

    def save_checkpoint(self, path: PathLike, weights_only: bool = False) -> None:
        """All ranks. Save everything from which a run can go on exactly.

        A checkpoint describes the state between two optimizer steps: asked for within an accumulation window, it is
        written at the window's end. After `fit` has returned it holds the optimizers until the next stage begins. Where
        they have ended with `fit` (ranks that a launcher made for it alone, shards, engines), such a checkpoint can
        be evaluated only, and a warning says so. Where a launcher has made the ranks for `fit` alone, the caller saves.

        Args:
            path: a local path or a URL.
            weights_only: leave out what only training needs. Such a checkpoint can be evaluated, not resumed.

        Raises:
            CheckpointError: it can't be written; what was at `path` is untouched.
            ConfigurationError: there is no module yet.
        """
        if not self.is_running:
            from core.trainer.state import late_save

            late_save.save(self, path, weights_only=weights_only)
        elif self.count_unfinished() or self.progress.epoch_is_ending:
            self.pending_saves.append((path, weights_only))
        else:
            self._write_checkpoint(path, weights_only)

    # what modules and callbacks may ask -----------------------------------------------------------------------------

    @property
    def strategy(self) -> Strategy:
        """The strategy that trains the module; resolved when the trainer was made."""
        return self.fabric.strategy

    @property
    def session(self) -> Session:
        """The strategy's session: what was set up, and states as a whole."""
        return self.fabric.session

    @property
    def logger(self) -> Logger | None:
        """The first logger, if there is one. On all ranks but 0, while a stage runs, one that does nothing."""
        return self.loggers[0] if self.loggers else None

    @property
    def log_dir(self) -> str:
        """Folder of this run: that of the first logger which has one, or else `default_root_dir`.

        The same on all ranks while a stage runs. Asking a logger for its folder makes one.
        """
        folders = (logger.log_dir for logger in self.loggers)
        return next(filter(None, folders), self.default_root_dir)

    @property
    def should_stop(self) -> bool:
        """Set it to True to stop training: on one process after the running step, on several within half a second.

        Ranks agree on it at steps that all of them know beforehand, so that one may set it alone.
        """
        return self._should_stop

    @should_stop.setter
    def should_stop(self, stops: bool) -> None:
        self._should_stop = stops
        if stops and self.stops is not None:
            self.stops.wake()

    @property
    def current_epoch(self) -> int:
        """Number of the running epoch, from 0."""
        return self.progress.epoch

    @property
    def global_step(self) -> int:
        """Optimizer steps that updated parameters."""
        return self.progress.global_step

    @property
    def wrapped_optimizers(self) -> list[Optimizer]:
        """The optimizers as a module sees them in manual optimization: their `step` goes through the strategy."""
        if self._wrapped_optimizers is None:
            self._wrapped_optimizers = [
                self.fabric.wrap_optimizer(optimizer, on_step=self._count_step, before_step=self._prepare_manual_step)
                for optimizer in self.strategy.optimizers
            ]
        return self._wrapped_optimizers

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on rank 0."""
        self.fabric.print(*args, **kwargs)

    def profile(self, action: str) -> AbstractContextManager[None]:
        """A context whose time the profiler reports under this name; without a profiler it does nothing."""
        return self.profiler.profile(action) if self.profiler is not None else nullcontext()

    # what the strategy asks (core.contract.SetupHost) ---------------------------------------------------------------

    @property
    def trains(self) -> bool:
        """True if this stage needs optimizers."""
        return self.stage == "fit"

    @property
    def clipping(self) -> GradientClipping | None:
        """The gradient clipping of this run."""
        return self.options.clipping

    def _require_optimizers(self, model: nn.Module) -> None:
        from core.trainer.module.module import has_method, require_method

        if Capability.MAKES_OPTIMIZERS not in self.strategy.capabilities:
            require_method(model, "configure_optimizers", "fit")
        elif has_method(model, "configure_optimizers"):
            raise ModuleError(
                f"{type(model).__name__} has configure_optimizers(), and the configuration that "
                f"{type(self.strategy).__name__} was given names an optimizer too. Leave one of them out."
            )

    def configure_model(self) -> None:
        """All ranks. Let the module build its large parts."""
        from core.trainer.hooks.events import overrides

        if overrides(self.module, "configure_model"):
            self.module.configure_model()
        if self.options.sync_batchnorm and Capability.COLLECTIVES in self.strategy.capabilities:
            self.module = nn.SyncBatchNorm.convert_sync_batchnorm(self.module)

    def configure_optimizers(self) -> tuple[list[Optimizer], list[Any]]:
        """All ranks. The module's optimizers and schedulers, in one form."""
        from core.trainer.module.optimization import check_optimizers, parse_optimizers
        from core.trainer.settings.checks import check_schedulers

        optimizers, schedulers = parse_optimizers(self.strategy.configure_optimizers(self.module))
        check_optimizers(
            self.module,
            optimizers,
            self.options,
            window=self.accumulate_grad_batches,
            is_global_zero=self.is_global_zero,
        )
        check_schedulers(self.strategy, schedulers)
        return list(optimizers), list(schedulers)

    def setup_dataloaders(self) -> None:
        """All ranks. Ask for the loaders of this stage, shard them and hand them to the strategy."""
        self.loaders.setup(self.strategy)

    def restore(self) -> None:
        """All ranks. Load the checkpoint that the user named, if any."""
        if self.trains:
            self.events.emit("on_fit_start")
            self.logged.train.begin_epoch()
            self.progress.restart_epoch()
        if self.ckpt_path is not None:
            from core.trainer.state import snapshot
            from core.watch import phase

            with phase("checkpoint"):
                snapshot.load(self, self.ckpt_path)
        self.session.refuse_half_loaded("trained" if self.trains else "evaluated")

    # what the loops ask ---------------------------------------------------------------------------------------------

    def make_transfer(self, dataloader_idx: int = 0) -> Callable[[Any], Any] | None:
        """The function that moves a loader's batches to the device; None if they are there."""
        from core.trainer.data.batch_transfer import batch_transfer

        transfer = batch_transfer(self.strategy, (self.datamodule, self.module), dataloader_idx)
        return transfer and self.profiled("transfer_batch", transfer)

    def profiled(self, action: str, function: Callable[P, R]) -> Callable[P, R]:
        """The function, measured if there is a profiler. Called once a stage."""
        return self.profiler.wrap(action, function) if self.profiler is not None else function

    def write_pending(self) -> None:
        """All ranks. Write what was asked for within the accumulation window that has just ended."""
        for path, weights_only in self.pending_saves:
            self._write_checkpoint(path, weights_only)
        self.pending_saves = []

    def _write_checkpoint(self, path: PathLike, weights_only: bool) -> None:
        from core.trainer.state import snapshot
        from core.watch import phase

        with phase("checkpoint"), self.profile("save_checkpoint"):
            snapshot.save(self, path, weights_only=weights_only)

    # the stages -----------------------------------------------------------------------------------------------------

    def take_fit_call(
        self, model: nn.Module, train_dataloaders: Any, val_dataloaders: Any, datamodule: DataModule | None
    ) -> FitCall:
        """The arguments of `fit`, checked."""
        from core.trainer.data.sources import (
            TRAIN,
            check_reload,
            find_source,
            find_validation,
            need_source,
            take_datamodule,
        )
        from core.trainer.loops.fit_call import FitCall
        from core.trainer.module.module import require_method

        require_method(model, "training_step", "fit")
        self._require_optimizers(model)
        train_dataloaders, datamodule = take_datamodule(train_dataloaders, datamodule, val_dataloaders)
        train = need_source(find_source(TRAIN, train_dataloaders, datamodule, model), TRAIN, datamodule, model)
        sources = [train, *find_validation(val_dataloaders, datamodule, model)]
        check_reload(self.options, sources)
        return FitCall(model, sources, datamodule)

    def _prepare_fit(self, sources: Sequence[Source]) -> None:
        """Let callbacks find what training begins with; a run that resumes has begun before."""
        from core.trainer.hooks.events import overrides
        from core.trainer.loops.fit_call import FitCall

        for callback in self.callbacks:
            if overrides(callback, "before_fit"):
                callback.before_fit(self, FitCall(self.module, sources, self.datamodule))

    def _module_or_last(self, model: nn.Module | None) -> nn.Module:
        module: nn.Module | None = model if model is not None else self.module
        if module is None:
            raise ConfigurationError("No model was given, and this Trainer has run none before. Pass one.")
        return module

    def _take_sources(
        self, role: Role, module: nn.Module, loaders: Any, datamodule: DataModule | None
    ) -> tuple[list[Source], DataModule | None]:
        from core.trainer.data.sources import find_source, need_source, take_datamodule

        loaders, datamodule = take_datamodule(loaders, datamodule)
        source = need_source(find_source(role, loaders, datamodule, module), role, datamodule, module)
        return [source], datamodule

    def _launch(
        self,
        stage: Stage,
        module: nn.Module,
        sources: Sequence[Source],
        datamodule: DataModule | None,
        ckpt_path: PathLike | None,
    ) -> Any:
        from core.trainer.data.loaders import Loaders
        from core.trainer.settings.checks import check_stage
        from core.trainer.signals.interruption import workers_interruption

        self.stage, self.datamodule, self.ckpt_path = stage, datamodule, ckpt_path
        self.finished_fit = None  # the optimizers of the last stage would take memory beside the new one's
        self.module = self.fabric.uncompiled(module)
        self.loaders = Loaders(self.options, sources)
        self.callbacks = self._module_callbacks.join(self.callbacks, self.module)
        self.logged.begin_stage()
        check_stage(self, sources)
        if stage == "fit" and ckpt_path is None and not self.fast_dev_run:
            self._prepare_fit(sources)
        launcher = self.strategy.launcher
        self.status = "running"
        try:
            with workers_interruption(launcher.calls_in_place):
                outcome = launcher.launch(self._run, not launcher.calls_in_place)
        except BaseException:
            self.status = "interrupted"
            raise
        self.status = "finished"
        if launcher.calls_in_place:
            return outcome
        outcome.restore(self)
        return outcome.result

    def _run(self, crosses_processes: bool) -> Any:
        """All ranks, in the worker."""
        from core.trainer.loops import stage_lifecycle

        return stage_lifecycle.run(self, crosses_processes)

    def count_unfinished(self) -> int:
        """Batches of a window whose optimizer step is still to come."""
        if not self.trains:
            return 0
        return self.progress.count_unfinished(self.window, self.loaders.epoch_end)

    def forget_optimizers(self) -> None:
        """Forget the optimizers of a stage that is over."""
        self._wrapped_optimizers = None

    def _prepare_manual_step(self, optimizer: Optimizer) -> None:
        step = self.running_step
        if step is not None and step.manual and step.before_optimizer_step is not None:
            self.strategy.precision_plugin.unscale_gradients(optimizer)
            step.before_optimizer_step(optimizer)

    def _count_step(self, updated: int) -> None:
        """A step that the module asked for, perhaps in the middle of its training step."""
        self.progress.global_step += updated
        torch.clear_autocast_cache()  # else what the module computes next would use copies of the old weights
