"""Lightning's modules as a table: each name, and where core or this package has it."""

from __future__ import annotations

from types import MappingProxyType

VERSION = "2.6.6"
"""The release of Lightning whose names and forms these are."""

_OWN = "core_lightning"


def _from(module: str, *names: str, **renamed: str) -> dict[str, str]:
    """Names of one module; `renamed` have another name there."""
    return {name: f"{module}:{name}" for name in names} | {name: f"{module}:{old}" for name, old in renamed.items()}


STAND_INS = f"{_OWN}.stand_ins"
"""The module of the names that can be imported, and not used."""
_VERSION = {"__version__": f"{_OWN}.names:VERSION"}
_CALLBACK = _from("core.callbacks", "Callback")
_MODULE = _from(f"{_OWN}.module", "LightningModule")
_DATA_MODULE = _from(f"{_OWN}.data_module", "LightningDataModule")
_TRAINER = _from(f"{_OWN}.trainer", "Trainer")
_SEED = _from(f"{_OWN}.seeding", "seed_everything")
_LOGO = _from(f"{_OWN}.utilities", "cli_lightning_logo")
_FABRIC = _from(f"{_OWN}.fabric", "Fabric")
_DISABLE = _from(f"{_OWN}.ranks", "disable_possible_user_warnings")
_MAIN = {**_TRAINER, **_MODULE, **_DATA_MODULE, **_CALLBACK, **_SEED}

_CALLBACK_FILES: dict[str, dict[str, str]] = {
    "batch_size_finder": _from(f"{_OWN}._tuning", "BatchSizeFinder"),
    "callback": _CALLBACK,
    "checkpoint": _from("core.callbacks", Checkpoint="ModelCheckpoint"),
    "device_stats_monitor": _from("core_monitors", "DeviceStatsMonitor"),
    "early_stopping": _from(f"{_OWN}._early_stopping", "EarlyStopping", "EarlyStoppingReason"),
    "finetuning": _from("core_finetuning", "BackboneFinetuning", "BaseFinetuning"),
    "gradient_accumulation_scheduler": _from("core.callbacks", "GradientAccumulationScheduler"),
    "lambda_function": _from("core.callbacks", "LambdaCallback"),
    "lr_finder": _from(f"{_OWN}._tuning", "LearningRateFinder"),
    "lr_monitor": _from("core_monitors", "LearningRateMonitor"),
    "model_checkpoint": _from(f"{_OWN}._callbacks", "ModelCheckpoint"),
    "model_summary": _from("core.callbacks", "ModelSummary"),
    "on_exception_checkpoint": _from("core.callbacks", "OnExceptionCheckpoint"),
    "prediction_writer": _from(f"{_OWN}._callbacks", "BasePredictionWriter", "WriteInterval"),
    "progress": {
        **_from("core.callbacks", "ProgressBar"),
        **_from(f"{_OWN}._callbacks", "RichProgressBar", "TQDMProgressBar"),
    },
    "progress.progress_bar": _from("core.callbacks", "ProgressBar"),
    "progress.rich_progress": _from(f"{_OWN}._callbacks", "RichProgressBar", "RichProgressBarTheme"),
    "progress.tqdm_progress": _from(f"{_OWN}._callbacks", "TQDMProgressBar"),
    "pruning": _from("core_finetuning", "ModelPruning"),
    "spike": _from(STAND_INS, "SpikeDetection"),
    "rich_model_summary": _from("core.callbacks", RichModelSummary="ModelSummary"),
    "stochastic_weight_avg": _from(f"{_OWN}._stochastic_averaging", "StochasticWeightAveraging"),
    "throughput_monitor": _from("core_monitors", "ThroughputMonitor"),
    "timer": _from("core.callbacks", "Timer"),
    "weight_averaging": _from(f"{_OWN}._weight_averaging", "EMAWeightAveraging", "WeightAveraging"),
}
_LOGGER_FILES: dict[str, dict[str, str]] = {
    "comet": _from(f"{_OWN}._loggers", "CometLogger"),
    "csv_logs": _from(f"{_OWN}._loggers", "CSVLogger"),
    "litlogger": _from(STAND_INS, "LitLogger"),
    "logger": {**_from("core", "Logger"), **_from(f"{_OWN}._loggers", "DummyLogger")},
    "mlflow": _from(f"{_OWN}._loggers", "MLFlowLogger"),
    "tensorboard": _from(f"{_OWN}._loggers", "TensorBoardLogger"),
    "wandb": _from(f"{_OWN}._loggers", "WandbLogger"),
}
_PROFILER_FILES: dict[str, dict[str, str]] = {
    "advanced": _from(f"{_OWN}.profilers", "AdvancedProfiler"),
    "profiler": _from("core.profilers", "Profiler"),
    "pytorch": _from("core.profilers", "PyTorchProfiler"),
    "simple": _from(f"{_OWN}.profilers", "SimpleProfiler"),
    "base": _from(f"{_OWN}.profilers", "PassThroughProfiler"),
    "xla": _from(STAND_INS, "XLAProfiler"),
}
_STRATEGY_FILES: dict[str, dict[str, str]] = {
    "ddp": _from(f"{_OWN}.strategies", "DDPStrategy"),
    "deepspeed": _from(f"{_OWN}.strategies", "DeepSpeedStrategy"),
    "fsdp": _from(f"{_OWN}.strategies", "FSDPStrategy"),
    "model_parallel": _from(f"{_OWN}.strategies", "ModelParallelStrategy"),
    "parallel": _from("core.strategies", "ParallelStrategy"),
    "single_device": _from(f"{_OWN}.strategies", "SingleDeviceStrategy"),
    "single_xla": _from(f"{_OWN}.strategies", "SingleDeviceXLAStrategy"),
    "strategy": _from("core.strategies", "Strategy"),
    "xla": _from(f"{_OWN}.strategies", "XLAStrategy"),
}
_ACCELERATOR_FILES: dict[str, dict[str, str]] = {
    "accelerator": _from(f"{_OWN}._accelerators", "Accelerator"),
    "cpu": _from(f"{_OWN}._accelerators", "CPUAccelerator"),
    "cuda": {
        **_from(f"{_OWN}._accelerators", "CUDAAccelerator"), **_from("core.accelerators", "find_usable_cuda_devices"),
    },
    "mps": _from(f"{_OWN}._accelerators", "MPSAccelerator"),
    "xla": _from(STAND_INS, "XLAAccelerator"),
}  # fmt: skip
_ENVIRONMENT_FILES = {
    "cluster_environment": _from(f"{_OWN}._environments", "ClusterEnvironment"),
    "kubeflow": _from(f"{_OWN}._environments", "KubeflowEnvironment"),
    "lightning": _from(f"{_OWN}._environments", "LightningEnvironment"),
    "lsf": _from(f"{_OWN}._environments", "LSFEnvironment"),
    "mpi": _from(f"{_OWN}._environments", "MPIEnvironment"),
    "slurm": _from(f"{_OWN}._environments", "SLURMEnvironment"),
    "torchelastic": _from(f"{_OWN}._environments", "TorchElasticEnvironment"),
    "xla": _from(STAND_INS, "XLAEnvironment"),
}
_XLA_IO = _from(STAND_INS, "XLACheckpointIO")
_IO = {**_from("core", "CheckpointIO"), **_from(_OWN, TorchCheckpointIO="LightningCheckpointIO"), **_XLA_IO}
_ASYNC = _from("core.checkpoint", "AsyncCheckpointIO")
_PRECISION_FILES = {
    "amp": _from(f"{_OWN}._precisions", "MixedPrecision"),
    "bitsandbytes": _from(STAND_INS, "BitsandbytesPrecision"),
    "deepspeed": _from(STAND_INS, "DeepSpeedPrecision"),
    "double": _from(f"{_OWN}._precisions", "DoublePrecision"),
    "fsdp": _from(STAND_INS, "FSDPPrecision"),
    "half": _from(f"{_OWN}._precisions", "HalfPrecision"),
    "precision": _from("core.precision", "Precision"),
    "transformer_engine": _from(STAND_INS, "TransformerEnginePrecision"),
    "xla": _from(STAND_INS, "XLAPrecision"),
}
_LAYER_SYNC = _from(f"{_OWN}.layer_sync", "LayerSync", "TorchSyncBatchNorm")

_RANK_ZERO = _from(
    f"{_OWN}.ranks", "rank_zero_deprecation", "rank_zero_info", "rank_zero_only", "rank_zero_warn"
)  # fmt: skip
_RANK_ZERO_FILE = {
    **_RANK_ZERO,
    **_from(
        f"{_OWN}.ranks", "LightningDeprecationWarning", "WarningCache", "rank_prefixed_message", "rank_zero_debug",
    ),
}  # fmt: skip
_ENUM = _from("enum", LightningEnum="StrEnum")
_TYPES = _from(
    f"{_OWN}.types", "DistributedDataParallel", "EVAL_DATALOADERS", "LRSchedulerConfig", "LRSchedulerConfigType",
    "LRSchedulerPLType", "LRSchedulerTypeTuple", "LRSchedulerTypeUnion", "OptimizerConfig", "OptimizerLRScheduler",
    "OptimizerLRSchedulerConfig", "STEP_OUTPUT", "TRAIN_DATALOADERS", "_EVALUATE_OUTPUT", "_METRIC", "_NUMBER",
    "_PREDICT_OUTPUT",
)  # fmt: skip
_FABRIC_TYPES = _from(
    f"{_OWN}.types", "LRScheduler", "Optimizable", "ReduceLROnPlateau", "ReduceOp", "_DEVICE", "_MAP_LOCATION_TYPE",
    "_PATH",
)  # fmt: skip
_PARSING = _from(
    f"{_OWN}.parsing", "AttributeDict", "collect_init_args", "get_init_args", "is_picklable", "lightning_getattr",
    "lightning_hasattr", "lightning_setattr", "save_hyperparameters",
)  # fmt: skip
_MOVE = _from(f"{_OWN}.utilities", "move_data_to_device")
_ERRORS = _from("core", MisconfigurationException="ConfigurationError")
_STATES = _from(f"{_OWN}.states", "RunningStage", "TrainerFn", "TrainerState", "TrainerStatus")
_COMBINED = _from(f"{_OWN}.combined_loader", "CombinedLoader")
_SUMMARY = _from(f"{_OWN}.model_summary", "ModelSummary", "summarize")
_FILES = _from(f"{_OWN}.utilities", "get_filesystem")
_WARNINGS = {**_from(f"{_OWN}.ranks", "PossibleUserWarning"), **_DISABLE}
_EXPERIMENT = _from(f"{_OWN}.ranks", "rank_zero_experiment")
_LOADER_WORKERS = _from(f"{_OWN}.batches", "suggested_max_num_workers")
_CLIPPING = _from(f"{_OWN}.utilities", "GradClipAlgorithmType")
_SHARED = _from(f"{_OWN}.model_helpers", "find_shared_parameters", "set_shared_parameters")
_GRADS = _from(f"{_OWN}.utilities", "grad_norm")
_TUNER = _from(f"{_OWN}._tuning", "Tuner")
_ISOLATE = _from(f"{_OWN}.seeding", "isolate_rng")
_AVAILABLE = _from(
    f"{_OWN}.imports", "_IS_INTERACTIVE", "_IS_WINDOWS", "_NUMPY_AVAILABLE", "_OMEGACONF_AVAILABLE", "_RICH_AVAILABLE",
    "_TORCHVISION_AVAILABLE", "_TORCHMETRICS_GREATER_EQUAL_1_0_0", "_try_import_module", "package_available",
    *(f"_TORCH_GREATER_EQUAL_2_{minor}" for minor in range(9)), "module_available",
)  # fmt: skip
_DEMO_FILES: dict[str, dict[str, str]] = {
    "boring_classes": _from(
        f"{_OWN}.demos.boring_classes", "BoringDataModule", "BoringDataModuleNoLen", "BoringModel", "DemoModel",
        "ManualOptimBoringModel", "Net", "RandomDataset", "RandomDictDataset", "RandomIterableDataset",
        "RandomIterableDatasetWithLen",
    ),
    "lstm": _from(f"{_OWN}.demos.lstm", "LightningLSTM", "SequenceSampler", "SimpleLSTM"),
    "mnist_datamodule": _from(f"{_OWN}.demos.mnist_datamodule", "MNIST", "MNISTDataModule"),
    "transformer": _from(
        f"{_OWN}.demos.transformer", "Dictionary", "LightningTransformer", "PositionalEncoding", "Transformer",
        "WikiText2", "tokenize",
    ),
}  # fmt: skip
_CLI = _from(
    f"{_OWN}.cli", "ArgsType", "LRSchedulerCallable", "LRSchedulerTypeTuple", "LightningArgumentParser",
    "LightningCLI", "OptimizerCallable", "ReduceLROnPlateau", "SaveConfigCallback", "instantiate_class",
)  # fmt: skip
_LOOP_FILES: dict[str, dict[str, str]] = {
    "evaluation_loop": _from(f"{_OWN}.loops", _EvaluationLoop="EvaluationLoop"),
    "fetchers": _from(STAND_INS, "_DataFetcher"),
    "fit_loop": _from(f"{_OWN}.loops", _FitLoop="FitLoop"),
    "loop": _from(STAND_INS, "_Loop"),
    "optimization": _from(STAND_INS, "_AutomaticOptimization", "_ManualOptimization"),
    "prediction_loop": _from(f"{_OWN}.loops", _PredictionLoop="EvaluationLoop"),
    "training_epoch_loop": _from(STAND_INS, "_TrainingEpochLoop"),
}
_SERVE_FILES: dict[str, dict[str, str]] = {
    "servable_module": _from(f"{_OWN}.servable", "ServableModule"),
    "servable_module_validator": {
        **_from(f"{_OWN}.servable", "ServableModule"), **_from(STAND_INS, "ServableModuleValidator"),
    },
}  # fmt: skip
_THROUGHPUT = _from(f"{_OWN}.throughput", "Throughput", "ThroughputMonitor", "measure_flops")
_FLOPS = _from(f"{_OWN}.throughput", "measure_flops")
_SHARED_FILES = _from(f"{_OWN}.utilities", "is_shared_filesystem")
_PARAMS = _from(
    f"{_OWN}.params", "_add_prefix", "_convert_json_serializable", "_convert_params", "_flatten_dict",
    "_sanitize_callable_params", "_sanitize_params",
)  # fmt: skip
_COLLECTIVE_FILES: dict[str, dict[str, str]] = {
    "collective": _from(f"{_OWN}.collectives", "Collective"),
    "single_device": _from(f"{_OWN}.collectives", "SingleDeviceCollective"),
    "torch_collective": _from(f"{_OWN}.collectives", "TorchCollective"),
}
_REGISTRIES = {"AcceleratorRegistry": "core.registry:ACCELERATOR_REGISTRY"}


def _merged(files: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: target for table in files.values() for name, target in table.items()}


def _package(name: str, files: dict[str, dict[str, str]], **more: str) -> dict[str, dict[str, str]]:
    """A package whose names are those of its files."""
    return {name: {**_merged(files), **more}, **{f"{name}.{file}": table for file, table in files.items()}}


_PLUGINS = {
    "plugins": {
        **_IO, **_ASYNC, **_merged(_ENVIRONMENT_FILES), **_merged(_PRECISION_FILES),
    },
    **_package("plugins.environments", _ENVIRONMENT_FILES),
    **_package("plugins.precision", _PRECISION_FILES),
}  # fmt: skip
_PYTORCH = {
    "": {**_MAIN, **_VERSION, **_LOGO, **_DISABLE},
    "cli": {
        **_CLI, **_MAIN, **_ERRORS, **_FILES, **_from(f"{_OWN}.model_helpers", "is_overridden"),
        **_from(f"{_OWN}.ranks", "rank_zero_warn"),
    },
    "core": {**_MODULE, **_DATA_MODULE, **_from("core.fabric", LightningOptimizer="FabricOptimizer")},
    "core.datamodule": _DATA_MODULE,
    "core.mixins": _from(f"{_OWN}.hyperparameters", "HyperparametersMixin"),
    "core.mixins.hparams_mixin": _from(f"{_OWN}.hyperparameters", "HyperparametersMixin"),
    "core.module": _MODULE,
    "core.saving": {**_FILES, **_from(f"{_OWN}.module", "_load_from_checkpoint")},
    "core.optimizer": _from("core.fabric", LightningOptimizer="FabricOptimizer"),
    **_package("demos", _DEMO_FILES),
    **_package("loops", _LOOP_FILES),
    **_package("serve", _SERVE_FILES),
    "trainer": {**_TRAINER, **_SEED},
    "trainer.connectors": {},
    "trainer.connectors.accelerator_connector": {
        **_REGISTRIES, **_from(f"{_OWN}.chosen_devices", "_AcceleratorConnector"),
        "StrategyRegistry": "core.registry:STRATEGY_REGISTRY",
    },
    "trainer.states": _STATES,
    "trainer.trainer": _TRAINER,
    "tuner": _TUNER,
    "tuner.tuning": _TUNER,
    **_package("callbacks", _CALLBACK_FILES),
    **_package("loggers", _LOGGER_FILES),
    "loggers.logger": {**_LOGGER_FILES["logger"], **_EXPERIMENT},
    **_package("profilers", _PROFILER_FILES),
    **_package(
        "strategies",
        _STRATEGY_FILES,
        StrategyRegistry="core.registry:STRATEGY_REGISTRY",
    ),
    **_package("accelerators", _ACCELERATOR_FILES, **_REGISTRIES),
    **_PLUGINS,
    "plugins": {**_PLUGINS["plugins"], **_LAYER_SYNC},
    "plugins.io": {**_IO, **_ASYNC, **_XLA_IO},
    "plugins.io.async_plugin": _ASYNC,
    "plugins.io.checkpoint_plugin": _from("core", "CheckpointIO"),
    "plugins.io.torch_plugin": _from(_OWN, TorchCheckpointIO="LightningCheckpointIO"),
    "plugins.layer_sync": _LAYER_SYNC,
    "utilities": {
        **_RANK_ZERO, **_ENUM, **_COMBINED, **_GRADS, **_MOVE, **_DISABLE, **_LOADER_WORKERS, **_CLIPPING, **_SHARED,
        **_FLOPS, **_SHARED_FILES, **_from(f"{_OWN}.parsing", "AttributeDict", "is_picklable"),
    },
    "utilities.combined_loader": _COMBINED,
    "utilities.compile": _from(f"{_OWN}.model_helpers", "from_compiled", "to_uncompiled"),
    "utilities.data": _from(f"{_OWN}.batches", "extract_batch_size", "has_iterable_dataset", "sized_len"),
    "utilities.enums": {**_ENUM, **_CLIPPING},
    "utilities.exceptions": _ERRORS,
    "utilities.grads": _GRADS,
    "utilities.imports": _AVAILABLE,
    "utilities.memory": _from(
        f"{_OWN}.memory", "garbage_collection_cuda", "is_cuda_out_of_memory", "is_cudnn_snafu", "is_oom_error",
        "is_out_of_cpu_memory", "recursive_detach",
    ),
    "utilities.model_helpers": _from(f"{_OWN}.model_helpers", "get_torchvision_model", "is_overridden"),
    "utilities.model_summary": _SUMMARY,
    "utilities.model_summary.model_summary": _SUMMARY,
    "utilities.parameter_tying": _SHARED,
    "utilities.parsing": _PARSING,
    "utilities.rank_zero": _RANK_ZERO_FILE,
    "utilities.seed": _ISOLATE,
    "utilities.warnings": _WARNINGS,
    "utilities.types": {**_TYPES, **_from(f"{_OWN}.types", "LRScheduler", "ReduceLROnPlateau", "Optimizable")},
}  # fmt: skip
_FABRIC_LOGGERS = _from(f"{_OWN}._fabric_loggers", "CSVLogger", "TensorBoardLogger")
_FABRIC_MODULES = {
    "": {**_FABRIC, **_SEED, **_VERSION, **_DISABLE, **_from(f"{_OWN}.utilities", "is_wrapped")},
    "fabric": _FABRIC,
    **_package(
        "accelerators",
        _ACCELERATOR_FILES,
        ACCELERATOR_REGISTRY="core.registry:ACCELERATOR_REGISTRY",
        TPUAccelerator=f"{STAND_INS}:TPUAccelerator",
    ),
    "accelerators.cuda": {
        **_ACCELERATOR_FILES["cuda"], **_from(f"{_OWN}.chosen_devices", "is_cuda_available", "num_cuda_devices"),
    },
    "loggers": {**_from("core", "Logger"), **_FABRIC_LOGGERS},
    "loggers.csv_logs": _from(f"{_OWN}._fabric_loggers", "CSVLogger"),
    "loggers.logger": {**_from("core", "Logger"), **_EXPERIMENT},
    "loggers.tensorboard": _from(f"{_OWN}._fabric_loggers", "TensorBoardLogger"),
    **_PLUGINS,
    **_package("plugins.collectives", _COLLECTIVE_FILES),
    "plugins.io": _IO,
    "plugins.io.checkpoint_io": _from("core", "CheckpointIO"),
    "plugins.io.torch_io": _from(_OWN, TorchCheckpointIO="LightningCheckpointIO"),
    **_package("strategies", _STRATEGY_FILES, STRATEGY_REGISTRY="core.registry:STRATEGY_REGISTRY"),
    "strategies": {
        **_merged(_STRATEGY_FILES), "STRATEGY_REGISTRY": "core.registry:STRATEGY_REGISTRY",
        **_from(f"{_OWN}.strategies", "DataParallelStrategy", "XLAFSDPStrategy"),
        **_from(STAND_INS, "SingleTPUStrategy"),
    },
    "strategies.dp": _from(f"{_OWN}.strategies", "DataParallelStrategy"),
    "strategies.xla_fsdp": _from(f"{_OWN}.strategies", "XLAFSDPStrategy"),
    "utilities": {
        **_RANK_ZERO, **_ENUM, **_MOVE, **_DISABLE, **_LOADER_WORKERS, **_from(f"{_OWN}.parsing", "AttributeDict"),
        **_THROUGHPUT, **_SHARED_FILES,
    },
    "utilities.apply_func": {**_MOVE, **_from(f"{_OWN}.utilities", "convert_tensors_to_scalars")},
    "utilities.cloud_io": {**_FILES, **_SHARED_FILES},
    "utilities.data": {
        **_LOADER_WORKERS, **_from(f"{_OWN}.parsing", "AttributeDict"),
        **_from(f"{_OWN}.batches", "has_iterable_dataset", "has_len", "sized_len"),
    },
    "utilities.enums": _ENUM,
    "utilities.exceptions": _ERRORS,
    "utilities.imports": _AVAILABLE,
    "utilities.logger": _PARAMS,
    "utilities.rank_zero": _RANK_ZERO_FILE,
    "utilities.throughput": _THROUGHPUT,
    "utilities.seed": {**_SEED, **_ISOLATE, **_from(f"{_OWN}.seeding", "reset_seed")},
    "utilities.types": _FABRIC_TYPES,
    "utilities.warnings": _WARNINGS,
    "wrappers": {
        **_from(
            "core.fabric", _FabricDataLoader="FabricDataLoader", _FabricModule="FabricModule",
            _FabricOptimizer="FabricOptimizer",
        ),
        **_from(f"{_OWN}.utilities", "_unwrap_objects", "is_wrapped"), **_MOVE,
        **_from(f"{_OWN}.model_helpers", "is_overridden"), **_from(f"{_OWN}.types", "Optimizable"),
        **_from("core", "Strategy"), **_from("core.precision", "Precision"),
    },
}  # fmt: skip

MODULES = MappingProxyType(
    {
        "lightning": {**_MAIN, **_FABRIC, **_VERSION},
        **{f"lightning.pytorch.{name}".rstrip("."): table for name, table in _PYTORCH.items()},
        **{f"lightning.fabric.{name}".rstrip("."): table for name, table in _FABRIC_MODULES.items()},
    }
)
"""For each module of Lightning's its names, each with `"module:attribute"` of what it is here."""
