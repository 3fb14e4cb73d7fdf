"""Our loop, any strategy."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from core.contract import ConfigurationError
from core_training.progress import Progress
from core_training.settings.duration import parse_duration
from core_training.settings.options import (
    TrainerOptions,
    limit_epochs,
    make_clipping,
    separate_val_check,
)
from core_training.settings.unknown_names import answers_unknown
from core_training.views.trainer_views import TrainerViews

# What only a trainer that is made, or that runs, needs is imported in its methods: a program that
# takes Trainer from `core` and lists its options, or its help, waits for none of it.
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import timedelta

    from torch import nn
    from torch.optim import Optimizer

    from core.contract import (
        Accelerator,
        ClippingAlgorithm,
        Devices,
        Logger,
        PathLike,
        Stage,
        Strategy,
    )
    from core.watch import WatchdogOptions
    from core_training.hooks.callback import Callback
    from core_training.loops.fit_call import FitCall
    from core_training.profilers import Profiler
    from core_training.settings.resume import Resume
    from core_training.stage_data.datamodule import DataModule
    from core_training.stage_data.sources import Role, Source


class Trainer(TrainerViews):
    """Trains and evaluates a module. One argument chooses the backend, and nothing else changes
    with it.

    It holds a run, one for each stage, made from its arguments and the run before. The public
    attributes `strategy`, `module`, `progress`, `callbacks`, `loggers`, `callback_metrics` and
    `should_stop` are there for modules and callbacks to use.
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
        save_only: Literal["all", "trainable"] = "all",
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
        activation_checkpointing: Any = None,
        activation_offload: bool = False,
        barebones: bool = False,
        use_distributed_sampler: bool = True,
        seed_samples: bool = False,
        keep_on_device: bool = False,
        plugins: Any = None,
        profiler: Profiler | Literal["simple", "advanced", "pytorch"] | None = None,
        default_root_dir: PathLike | None = None,
        watch: bool | WatchdogOptions | None = None,
    ) -> None:
        """Check all arguments; nothing is started yet.

        Args:
            accelerator: `"cpu"`, `"gpu"`, `"cuda"`, `"mps"`, any registered one, an instance, or
                `"auto"`.
            strategy: an alias (see `core list-strategies`), an instance with options, or `"auto"`.
            devices: a number, `-1` for all, indices (`[1, 3]`, `"1,3"`), or `"auto"`: every GPU,
                one process on a CPU.
            num_nodes: number of machines; `"auto"` takes it from the scheduler or torchrun.
            precision: `"32-true"`, `"bf16-mixed"`, `"16-mixed"`, `"64-true"`, ...; None is
                `"32-true"`.
            logger: aliases (`"tensorboard"`, see `core list loggers`) or instances, one or several;
                False for none. None and True write a CSV file, in `core_logs` in
                `default_root_dir`.
            callbacks: one or several callbacks, or names of installed event hooks (entry points of
                `core.hooks`).
            max_epochs: stop after this many epochs; -1 for no limit. Without any limit, 1000.
            min_epochs: train at least this many epochs, even if a callback asks to stop.
            max_steps: stop after this many optimizer steps; -1 for no limit.
            min_steps: take at least this many optimizer steps, even if a callback asks to stop.
            max_time: stop after this time: a timedelta, `{"hours": 2}`, or `"DD:HH:MM:SS"`.
            limit_train_batches: train on this many batches an epoch, or on this fraction of them.
            limit_val_batches: the same for validation; 0 disables it.
            limit_test_batches: the same for test.
            limit_predict_batches: the same for predict.
            overfit_batches: train and validate on only the first batches of each loader, this many
                or this fraction, the same in each epoch: shuffling is turned off, with a warning. 0
                for all data.
            fast_dev_run: smoke test: run one batch (or this many) of every stage. Nothing is logged
                or saved.
            val_check_interval: validate after this many batches, this fraction of an epoch, or this
                time: a timedelta, `{"minutes": 10}`, or `"DD:HH:MM:SS"`.
            check_val_every_n_epoch: validate only every n epochs. None: `val_check_interval` counts
                batches over all epochs.
            reload_dataloaders_every_n_epochs: ask the hooks for new loaders every n epochs; 0 for
                never.
            num_sanity_val_steps: validation batches to run before training, to find mistakes early;
                -1 for all. None is 2.
            log_every_n_steps: send step values to the loggers every n optimizer steps, and those of
                the last step if there were fewer. None is 50.
            enable_checkpointing: save a checkpoint at the end of every epoch, and keep the newest;
                or what a ModelCheckpoint in `callbacks` says. None is yes, as for the next two,
                unless `barebones`.
            save_only: `"trainable"` leaves frozen parameters out of checkpoints: the program has
                them from elsewhere.
            enable_progress_bar: show a progress bar on rank 0.
            enable_model_summary: print a table of the model on rank 0 when fit begins.
            accumulate_grad_batches: batches whose gradients are averaged for one optimizer step.
            global_batch_size: samples of all ranks together in one optimizer step, whatever their
                number: the loader's `batch_size` is the most that a rank takes at once, and the
                accumulation window follows.
            gradient_clip_val: clip gradients to this norm, or absolute value.
            gradient_clip_algorithm: `"norm"` or `"value"`.
            deterministic: while a stage runs, use torch's deterministic algorithms, which may be
                slower. An operation that has none is an error; `"warn"` only warns of it. See also
                `seed_everything`.
            benchmark: let cuDNN try its algorithms for each new shape, and pick the fastest. None
                leaves it as it is.
            detect_anomaly: find the operation that produced a NaN in backward. Slow.
            terminate_on_nan: raise an error at the first training loss that is NaN or infinite,
                before the optimizer steps. Each step waits for the device. Without it there is a
                warning, later.
            inference_mode: evaluate under `torch.inference_mode` rather than `torch.no_grad`, if
                the strategy can. `fit` validates under `torch.no_grad`, since training may use what
                validation has made.
            sync_batchnorm: let batch norms compute their statistics over all ranks. On GPUs only.
            compile: run the module's steps through `torch.compile`; or a dict of its options. With
                `"region": "units"` among them each repeated block is compiled by itself, once for
                all that are alike; a list of layer classes, or of names of classes or modules, says
                which. A module that you have compiled yourself, by `torch.compile(module)`, is
                compiled in the same way inside of the strategy's wrapper. Names in checkpoints
                don't change with it.
            activation_checkpointing: compute activations of the module's units again in backward,
                rather than keep them: `"units"` for its repeated blocks; a list of layer classes,
                or of names; a selective policy of torch's, a function or a list of operations; or
                `{"units": ..., "policy": ...}`. Values don't change.
            activation_offload: keep what the units save for backward in CPU memory.
            barebones: run only the loop, to measure what the rest costs: no logger, checkpoints,
                bar, summary or sanity check, and `self.log` does nothing.
            use_distributed_sampler: give each rank its shard of the data.
            seed_samples: seed Python's, NumPy's and torch's generators for every training sample
                that is loaded, so that random augmentation doesn't depend on workers and ranks, and
                goes on exactly after a resume.
            keep_on_device: leave the module on the device after a stage. Otherwise it returns to
                the CPU, as it does when ranks are other processes, and the device's memory is
                freed.
            plugins: instances or aliases of a Precision, CheckpointIO, ClusterEnvironment or
                Launcher.
            profiler: measure where time goes: `"simple"`, `"advanced"`, `"pytorch"` of
                core-profilers, or an instance.
            default_root_dir: where checkpoints and logs go; None is the current folder.
            watch: detect ranks that hang, report which one, where and how, and end the run with a
                `HangError` if that lasts: a `WatchdogOptions` with limits of your own, False for
                none. None is True.

        Raises:
            ConfigurationError: arguments that can't be met, with what can.
        """
        from core.display import install_for
        from core.fabric import Fabric
        from core_training.arguments import quick_runs
        from core_training.arguments.defaults import make_callbacks, make_loggers, make_profiler
        from core_training.arguments.module_callbacks import ModuleCallbacks
        from core_training.checks.stage_checks import check_arguments
        from core_training.logging.metric_collector import MetricCollector, NullMetricCollector
        from core_training.logging.metric_values import MetricValues
        from core_training.run import Run
        from core_training.settings.torch_modes import check_modes

        install_for(self)
        if barebones:
            quick_runs.check_barebones(
                logger=logger,
                enable_checkpointing=enable_checkpointing,
                enable_progress_bar=enable_progress_bar,
                enable_model_summary=enable_model_summary,
                num_sanity_val_steps=num_sanity_val_steps,
                log_every_n_steps=log_every_n_steps,
                fast_dev_run=fast_dev_run,
                detect_anomaly=detect_anomaly,
                terminate_on_nan=terminate_on_nan,
                profiler=profiler,
            )
            logger, num_sanity_val_steps = False, 0
        check_modes(deterministic, benchmark)
        longest = None if max_time is None else parse_duration("max_time", max_time)
        val_check_batches, val_check_time = separate_val_check(val_check_interval)
        options = TrainerOptions(
            max_epochs=limit_epochs(max_epochs, max_steps, longest),
            min_epochs=min_epochs,
            max_steps=max_steps,
            min_steps=min_steps,
            max_time=longest,
            limit_train_batches=limit_train_batches,
            limit_val_batches=limit_val_batches,
            limit_test_batches=limit_test_batches,
            limit_predict_batches=limit_predict_batches,
            overfit_batches=overfit_batches,
            val_check_interval=val_check_batches,
            val_check_time=val_check_time,
            reload_dataloaders_every_n_epochs=reload_dataloaders_every_n_epochs,
            check_val_every_n_epoch=check_val_every_n_epoch,
            num_sanity_val_steps=2 if num_sanity_val_steps is None else num_sanity_val_steps,
            log_every_n_steps=50 if log_every_n_steps is None else log_every_n_steps,
            accumulate_grad_batches=accumulate_grad_batches,
            global_batch_size=global_batch_size,
            clipping=make_clipping(gradient_clip_val, gradient_clip_algorithm),
            deterministic=deterministic,
            benchmark=benchmark,
            detect_anomaly=detect_anomaly,
            terminate_on_nan=terminate_on_nan,
            inference_mode=inference_mode,
            sync_batchnorm=sync_batchnorm,
            use_distributed_sampler=use_distributed_sampler,
            seed_samples=seed_samples,
            keep_on_device=keep_on_device,
            save_only=save_only,
        )
        num_quick_batches = quick_runs.count_batches(fast_dev_run)
        options = quick_runs.limit_options(options, num_quick_batches)
        root = default_root_dir
        if root is not None and os.fspath(root).startswith("~"):
            root = os.path.expanduser(root)
        # The Fabric resolves the strategy, which the checks below ask.
        fabric = Fabric(
            loggers=make_loggers(logger, root),
            accelerator=accelerator,
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            plugins=plugins,
            compile=compile,
            activation_checkpointing=activation_checkpointing,
            activation_offload=activation_offload,
            watch=watch,
        )
        check_arguments(options, fabric.strategy)
        fabric.loggers = quick_runs.silence(fabric.loggers, num_quick_batches)
        made_callbacks = make_callbacks(
            callbacks,
            default=not barebones,
            enable_progress_bar=enable_progress_bar,
            enable_model_summary=enable_model_summary,
            enable_checkpointing=enable_checkpointing,
        )
        # who makes no Trainer waits for none of it
        from core_training.stage_data.loaders import Loaders

        self._module_callbacks = ModuleCallbacks()
        self.run = Run(
            fabric=fabric,
            options=options,
            callbacks=quick_runs.without_traces(made_callbacks, num_quick_batches),
            loggers=fabric.loggers,
            profiler=make_profiler(profiler),
            default_root_dir=os.getcwd() if root is None else os.fspath(root),
            fast_dev_run=num_quick_batches,
            progress=(progress := Progress()),
            logged=MetricValues(NullMetricCollector if barebones else MetricCollector, progress),
            accumulate_grad_batches=accumulate_grad_batches,
            loaders=Loaders(options, []),
        )

    # what the user calls --------------------------------------------------------------------------

    def fit(
        self,
        model: nn.Module,
        train_dataloaders: object = None,
        val_dataloaders: object = None,
        datamodule: DataModule | None = None,
        ckpt_path: PathLike | None = None,
        *,
        resume: str | Collection[str] | Resume = "all",
    ) -> None:
        """Train, and validate in between.

        Loaders that aren't passed are those of the data module, or else of the module, if they have
        hooks for them.

        Args:
            model: a `core.Module`, or any `nn.Module` with `training_step` and
                `configure_optimizers`.
            train_dataloaders: a loader, or any iterable of batches; several in a dict, a list or a
                `CombinedLoader`. A DataModule may stand here.
            val_dataloaders: one or several of them; without any, there is no validation.
            datamodule: makes all loaders.
            ckpt_path: a checkpoint from which to go on. At a limit of this run, a line says that
                nothing is trained.
            resume: the parts of it to go on with, see `core.trainer.Resume`; with `"weights"` a run
                begins at step 0.

        Raises:
            ModuleError: the module lacks what training needs.
            ConfigurationError: no training loader, or something that is none.
            CheckpointError: `ckpt_path` can't be read, doesn't fit, or lies past a limit of this
                run.
        """
        from core_training.loops.launch import launch

        parts = None
        if resume != "all":
            from core_training.settings.resume import Resume  # few take parts

            parts = Resume.of(resume, ckpt_path)
        call = self.check_fit_call(model, train_dataloaders, val_dataloaders, datamodule)
        settings = {"datamodule": call.datamodule, "ckpt_path": ckpt_path, "resume": parts}
        self._begin("fit", call.module, call.sources, **settings, is_asked_to_stop=False)
        launch(self.run, call.sources)

    def validate(
        self,
        model: nn.Module | None = None,
        dataloaders: object = None,
        datamodule: DataModule | None = None,
        ckpt_path: PathLike | None = None,
        verbose: bool = True,
    ) -> list[dict[str, float]]:
        """Run `validation_step` over one or several loaders.

        Args:
            model: with `validation_step`; None is the one that this Trainer ran last, with the
                weights that it has.
            dataloaders: one or several; if None, those of the data module or the module.
            datamodule: makes them.
            ckpt_path: a checkpoint whose weights are to be used.
            verbose: let the progress bar print the results.

        Returns:
            What was logged, a dict for each loader.
        """
        from core_training.stage_data.sources import VALIDATION

        settings = {"ckpt_path": ckpt_path, "prints_results": verbose}
        return self._evaluate(VALIDATION, model, dataloaders, datamodule, **settings)  # type: ignore[return-value]

    def test(
        self,
        model: nn.Module | None = None,
        dataloaders: object = None,
        datamodule: DataModule | None = None,
        ckpt_path: PathLike | None = None,
        verbose: bool = True,
    ) -> list[dict[str, float]]:
        """Run `test_step` over one or several loaders; see `validate`."""
        from core_training.stage_data.sources import TEST

        settings = {"ckpt_path": ckpt_path, "prints_results": verbose}
        return self._evaluate(TEST, model, dataloaders, datamodule, **settings)  # type: ignore[return-value]

    def predict(
        self,
        model: nn.Module | None = None,
        dataloaders: object = None,
        datamodule: DataModule | None = None,
        return_predictions: bool | None = None,
        ckpt_path: PathLike | None = None,
    ) -> list[Any] | None:
        """Run `predict_step` over one or several loaders.

        Args:
            model: with `predict_step`; that of `core.Module` calls the module. None is the one that
                this Trainer ran last.
            dataloaders: one or several; if None, those of the data module or the module.
            datamodule: makes them.
            return_predictions: collect what `predict_step` returns; None is True. False saves the
                memory, for a `BasePredictionWriter` of core-predictions.
            ckpt_path: a checkpoint whose weights are to be used.

        Returns:
            What `predict_step` returned, a list of batches on the CPU; with several loaders a list
            of such lists. On rank 0, and so for the caller of every launcher, those of all ranks in
            the order of the data set, as on one device; on the other ranks their own. None with
            `return_predictions=False`.
        """
        from core_training.stage_data.sources import PREDICTION

        settings = {"ckpt_path": ckpt_path, "returns_predictions": return_predictions is not False}
        return self._evaluate(PREDICTION, model, dataloaders, datamodule, **settings)  # type: ignore[return-value]

    def _evaluate(
        self,
        role: Role,
        model: nn.Module | None,
        loaders: object,
        datamodule: DataModule | None,
        **settings: object,
    ) -> object:
        from core_training.arguments.loader_arguments import check_sources
        from core_training.loops.launch import launch
        from core_training.module.module import require_method

        module, stage = self._module_or_last(model), role.stage
        # that of `core.Module` will do
        if stage != "predict" or not hasattr(module, "predict_step"):
            require_method(
                module, "validation_step" if stage == "validate" else f"{stage}_step", stage
            )
        sources, datamodule = check_sources(role, module, loaders, datamodule)
        self._begin(stage, module, sources, datamodule=datamodule, **settings)
        return launch(self.run, sources)

    def check_fit_call(
        self,
        model: nn.Module,
        train_dataloaders: object,
        val_dataloaders: object,
        datamodule: DataModule | None,
    ) -> FitCall:
        """The arguments of `fit`, checked."""
        from core_training.arguments.loader_arguments import check_fit_call
        from core_training.module.module import require_method
        from core_training.module.optimization import require_optimizers

        require_method(model, "training_step", "fit")
        require_optimizers(model, self.strategy)
        return check_fit_call(self.options, model, train_dataloaders, val_dataloaders, datamodule)

    def check_copied_fit(self, who: str, module: nn.Module) -> None:
        """Refuse modules and strategies with which `fit_on_copies` can't be.

        Args:
            who: the class that asks for it.
            module: the user's own.

        Raises:
            ConfigurationError: the module steps its optimizers itself.
            UnsupportedError: the strategy's engine or shards can't be taken apart from a run.
        """
        from core_training.copies.copied_fit import check_copied_fit

        check_copied_fit(who, self.strategy, module)

    def fit_on_copies(self, call: FitCall, callback: Callback, *, max_steps: int) -> None:
        """Run `fit` on copies for so many optimizer steps. What the callback has found is in the
        callback itself.

        This Trainer, its loggers and callbacks, the module, the positions of loaders and the random
        state stay as they are. A callback's `before_fit` may call it.

        Raises:
            ConfigurationError: something can't be copied.
        """
        from core_training.copies.copied_fit import fit_on_copies

        fit_on_copies(self, call, callback, max_steps=max_steps)

    def _module_or_last(self, model: nn.Module | None) -> nn.Module:
        if (module := self.module if model is None else model) is None:
            raise ConfigurationError(
                "No model was given, and this Trainer has run none before. Pass one."
            )
        return module

    def _begin(
        self, stage: Stage, module: nn.Module, sources: Sequence[Source], **settings: Any
    ) -> None:
        """Begin a new run, with backend, counters and metrics of the one before, whose optimizers
        are let go.
        """
        from core_training.stage_data.loaders import Loaders

        if self.run.is_running:
            raise ConfigurationError(
                f"trainer.{stage}() was called while trainer.{self.run.stage}() runs: one Trainer "
                "does one thing at a time, and its progress would be lost. Call it after that has "
                "ended, or on another Trainer."
            )
        own = self.fabric.uncompiled(module)
        callbacks = self._module_callbacks.join(self.callbacks, own)
        settings = {
            "resume": None,
            **settings,
            "stage": stage,
            "module": own,
            "callbacks": callbacks,
        }
        settings["loaders"] = Loaders(self.options, sources)
        settings["counts_on"] = own is self.run.module and self.progress.total_batches > 0
        self.run = replace(self.run, trainer=self, **settings)

    # what the strategy asks (core.contract.SetupHost) ---------------------------------------------

    def configure_model(self) -> None:
        """All ranks. Call the module's `configure_model`, which builds large layers."""
        from core_training.loops import set_up

        set_up.configure_model(self.run)

    def configure_optimizers(self) -> tuple[list[Optimizer], list[Any]]:
        """All ranks. The module's optimizers and schedulers, in one form."""
        from core_training.loops import set_up

        return set_up.configure_optimizers(self.run)

    def setup_dataloaders(self) -> None:
        """All ranks. Ask for the loaders of this stage, shard them and hand them to the
        strategy.
        """
        self.run.loaders.setup(self.strategy)

    def restore(self) -> None:
        """All ranks. Load the checkpoint that the user named, if any."""
        from core_training.loops import set_up

        set_up.restore(self.run)
