"""Our loop, any strategy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from core_training.progress import Progress
from core_training.settings.duration import parse_duration
from core_training.settings.options import (
    TrainerOptions,
    limit_epochs,
    make_clipping,
    separate_val_check,
)
from core_training.settings.unknown_names import answers_unknown
from core_training.stages import TrainerStages

# What only a trainer that is made, or that runs, needs is imported in its methods: a program that
# takes Trainer from `core` and lists its options, or its help, waits for none of it.
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import timedelta

    from core.contract import (
        Accelerator,
        ClippingAlgorithm,
        Devices,
        Logger,
        PathLike,
        Strategy,
    )
    from core.watch import WatchdogOptions
    from core_training.hooks.callback import Callback
    from core_training.profilers import Profiler


class Trainer(TrainerStages):
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
                bar, summary or sanity check, but what other arguments ask for, and `self.log` does
                nothing.
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
        if logger is None and barebones:
            logger = False
        if num_sanity_val_steps is None and barebones:
            num_sanity_val_steps = 0
        if num_sanity_val_steps is None:
            num_sanity_val_steps = 2
        if log_every_n_steps is None:
            log_every_n_steps = 50
        check_modes(deterministic, benchmark)
        longest = None
        if max_time is not None:
            longest = parse_duration("max_time", max_time)
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
            num_sanity_val_steps=num_sanity_val_steps,
            log_every_n_steps=log_every_n_steps,
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
        root = os.getcwd()
        if default_root_dir is not None:
            default_root_dir = root = os.path.expanduser(os.fspath(default_root_dir))
        progress = Progress()
        # The Fabric resolves the strategy, which the checks below ask.
        fabric = Fabric(
            loggers=make_loggers(logger, default_root_dir),
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
            default_root_dir=root,
            fast_dev_run=num_quick_batches,
            progress=progress,
            logged=MetricValues(NullMetricCollector if barebones else MetricCollector, progress),
            accumulate_grad_batches=accumulate_grad_batches,
            loaders=Loaders(options, []),
        )
