"""Lightning's modules as a table: each name, and where core or this package has it."""

from __future__ import annotations

from types import MappingProxyType

VERSION = "2.6.6"
"""The release of Lightning whose names and forms these are."""

_OWN = "core_lightning"


def _from(module: str, *names: str, **renamed: str) -> dict[str, str]:
    """Names of one module; `renamed` have another name there."""
    return {name: f"{module}:{name}" for name in names} | {name: f"{module}:{old}" for name, old in renamed.items()}


_VERSION = {"__version__": f"{_OWN}.names:VERSION"}
_CALLBACK = _from("core.callbacks", "Callback")
_MODULE = _from(f"{_OWN}.module", "LightningModule")
_DATA_MODULE = _from(f"{_OWN}.data_module", "LightningDataModule")
_TRAINER = _from(f"{_OWN}.trainer", "Trainer")
_SEED = _from(f"{_OWN}.seeding", "seed_everything")
_FABRIC = _from(f"{_OWN}.fabric", "Fabric")
_MAIN = {**_TRAINER, **_MODULE, **_DATA_MODULE, **_CALLBACK, **_SEED}

_CALLBACK_FILES: dict[str, dict[str, str]] = {
    "batch_size_finder": _from("core.callbacks", "BatchSizeFinder"),
    "callback": _CALLBACK,
    "checkpoint": _from("core.callbacks", Checkpoint="ModelCheckpoint"),
    "device_stats_monitor": _from("core.callbacks", "DeviceStatsMonitor"),
    "early_stopping": _from(f"{_OWN}.callbacks", "EarlyStopping"),
    "finetuning": _from("core.callbacks", "BackboneFinetuning", "BaseFinetuning"),
    "gradient_accumulation_scheduler": _from("core.callbacks", "GradientAccumulationScheduler"),
    "lambda_function": _from("core.callbacks", "LambdaCallback"),
    "lr_finder": _from("core.callbacks", "LearningRateFinder"),
    "lr_monitor": _from("core.callbacks", "LearningRateMonitor"),
    "model_checkpoint": _from(f"{_OWN}.callbacks", "ModelCheckpoint"),
    "model_summary": _from("core.callbacks", "ModelSummary"),
    "on_exception_checkpoint": _from("core.callbacks", "OnExceptionCheckpoint"),
    "prediction_writer": _from(f"{_OWN}.callbacks", "BasePredictionWriter", "WriteInterval"),
    "progress": {
        **_from("core.callbacks", "ProgressBar", "RichProgressBar"),
        **_from(f"{_OWN}.callbacks", "TQDMProgressBar"),
    },
    "progress.progress_bar": _from("core.callbacks", "ProgressBar"),
    "progress.rich_progress": _from("core.callbacks", "RichProgressBar"),
    "progress.tqdm_progress": _from(f"{_OWN}.callbacks", "TQDMProgressBar"),
    "pruning": _from("core.callbacks", "ModelPruning"),
    "rich_model_summary": _from("core.callbacks", RichModelSummary="ModelSummary"),
    "stochastic_weight_avg": _from("core.callbacks", "StochasticWeightAveraging"),
    "throughput_monitor": _from("core.callbacks", "ThroughputMonitor"),
    "timer": _from("core.callbacks", "Timer"),
    "weight_averaging": _from("core.callbacks", "WeightAveraging"),
}
_LOGGER_FILES: dict[str, dict[str, str]] = {
    "csv_logs": _from(f"{_OWN}.loggers", "CSVLogger"),
    "logger": {**_from("core", "Logger"), **_from(f"{_OWN}.loggers", "DummyLogger")},
    "mlflow": _from(f"{_OWN}.loggers", "MLFlowLogger"),
    "tensorboard": _from(f"{_OWN}.loggers", "TensorBoardLogger"),
    "wandb": _from(f"{_OWN}.loggers", "WandbLogger"),
}
_PROFILER_FILES: dict[str, dict[str, str]] = {
    "advanced": _from("core.profilers", "AdvancedProfiler"),
    "profiler": _from("core.profilers", "Profiler"),
    "pytorch": _from("core.profilers", "PyTorchProfiler"),
    "simple": _from("core.profilers", "SimpleProfiler"),
}
_STRATEGY_FILES: dict[str, dict[str, str]] = {
    "ddp": _from("core.strategies", "DDPStrategy"),
    "deepspeed": _from("core.strategies", "DeepSpeedStrategy"),
    "fsdp": _from("core.strategies", "FSDPStrategy"),
    "model_parallel": _from("core.strategies", "ModelParallelStrategy"),
    "parallel": _from("core.strategies", "ParallelStrategy"),
    "single_device": _from("core.strategies", "SingleDeviceStrategy"),
    "strategy": _from("core.strategies", "Strategy"),
}
_ACCELERATOR_FILES: dict[str, dict[str, str]] = {
    "accelerator": _from("core.accelerators", "Accelerator"),
    "cpu": _from("core.accelerators", "CPUAccelerator"),
    "cuda": _from("core.accelerators", "CUDAAccelerator", "find_usable_cuda_devices"),
    "mps": _from("core.accelerators", "MPSAccelerator"),
}
_ENVIRONMENTS = {
    **_from("core", "ClusterEnvironment"),
    **_from(
        "core.cluster", "KubeflowEnvironment", "LSFEnvironment", "SLURMEnvironment", "TorchElasticEnvironment",
        LightningEnvironment="LocalEnvironment", MPIEnvironment="MPIEnvironment",
    ),
}  # fmt: skip
_IO = {**_from("core", "CheckpointIO"), **_from(_OWN, TorchCheckpointIO="LightningCheckpointIO")}
_PRECISION = _from("core.precision", "MixedPrecision", "Precision")

_RANK_ZERO = _from(
    f"{_OWN}.utilities", "rank_zero_deprecation", "rank_zero_info", "rank_zero_only", "rank_zero_warn"
)  # fmt: skip
_ENUM = _from("enum", LightningEnum="StrEnum")
_TYPES = _from(
    f"{_OWN}.types", "EVAL_DATALOADERS", "LRSchedulerConfigType", "LRSchedulerPLType",
    "LRSchedulerTypeUnion", "OptimizerConfig", "OptimizerLRScheduler", "OptimizerLRSchedulerConfig", "STEP_OUTPUT",
    "TRAIN_DATALOADERS", "_EVALUATE_OUTPUT", "_METRIC", "_NUMBER", "_PREDICT_OUTPUT",
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
_COMBINED = _from("core", "CombinedLoader")
_SUMMARY = _from(f"{_OWN}.model_summary", "ModelSummary", "summarize")
_FILES = _from(f"{_OWN}.utilities", "get_filesystem")
_WARNINGS = _from(f"{_OWN}.utilities", "PossibleUserWarning")
_GRADS = _from(f"{_OWN}.utilities", "grad_norm")
_TUNER = _from("core", "Tuner")
_ISOLATE = _from(f"{_OWN}.seeding", "isolate_rng")


def _merged(files: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: target for table in files.values() for name, target in table.items()}


def _package(name: str, files: dict[str, dict[str, str]], **more: str) -> dict[str, dict[str, str]]:
    """A package whose names are those of its files."""
    return {name: {**_merged(files), **more}, **{f"{name}.{file}": table for file, table in files.items()}}


_PYTORCH = {
    "": {**_MAIN, **_VERSION},
    "core": {**_MODULE, **_DATA_MODULE},
    "core.datamodule": _DATA_MODULE,
    "core.mixins": _from(f"{_OWN}.hyperparameters", "HyperparametersMixin"),
    "core.module": _MODULE,
    "core.saving": _FILES,
    "core.optimizer": _from("core.fabric", LightningOptimizer="FabricOptimizer"),
    "trainer": {**_TRAINER, **_SEED},
    "trainer.states": _STATES,
    "trainer.trainer": _TRAINER,
    "tuner": _TUNER,
    "tuner.tuning": _TUNER,
    **_package("callbacks", _CALLBACK_FILES),
    **_package("loggers", _LOGGER_FILES),
    **_package("profilers", _PROFILER_FILES),
    **_package(
        "strategies",
        _STRATEGY_FILES,
        StrategyRegistry="core.registry:STRATEGY_REGISTRY",
    ),
    **_package("accelerators", _ACCELERATOR_FILES, AcceleratorRegistry="core.registry:ACCELERATOR_REGISTRY"),
    "plugins": {**_IO, **_ENVIRONMENTS, **_PRECISION, **_from("core.checkpoint", "AsyncCheckpointIO")},
    "plugins.environments": _ENVIRONMENTS,
    "plugins.io": {**_IO, **_from("core.checkpoint", "AsyncCheckpointIO")},
    "plugins.precision": _PRECISION,
    "utilities": {
        **_RANK_ZERO, **_ENUM, **_COMBINED, **_GRADS, **_MOVE,
        **_from(f"{_OWN}.parsing", "AttributeDict", "is_picklable"),
    },
    "utilities.combined_loader": _COMBINED,
    "utilities.enums": _ENUM,
    "utilities.exceptions": _ERRORS,
    "utilities.grads": _GRADS,
    "utilities.model_summary": _SUMMARY,
    "utilities.parsing": _PARSING,
    "utilities.rank_zero": _RANK_ZERO,
    "utilities.seed": _ISOLATE,
    "utilities.warnings": _WARNINGS,
    "utilities.types": {**_TYPES, **_from(f"{_OWN}.types", "LRScheduler", "ReduceLROnPlateau", "Optimizable")},
}  # fmt: skip
_FABRIC_MODULES = {
    "": {**_FABRIC, **_SEED, **_VERSION},
    "fabric": _FABRIC,
    "accelerators": _merged(_ACCELERATOR_FILES),
    "loggers": _from(f"{_OWN}.loggers", "CSVLogger", "Logger", "TensorBoardLogger"),
    "plugins": {**_IO, **_ENVIRONMENTS, **_PRECISION},
    "plugins.environments": _ENVIRONMENTS,
    "strategies": _merged(_STRATEGY_FILES),
    "utilities": {**_RANK_ZERO, **_ENUM, **_MOVE},
    "utilities.apply_func": _MOVE,
    "utilities.cloud_io": _FILES,
    "utilities.enums": _ENUM,
    "utilities.exceptions": _ERRORS,
    "utilities.rank_zero": _RANK_ZERO,
    "utilities.seed": {**_SEED, **_ISOLATE},
    "utilities.types": _FABRIC_TYPES,
    "utilities.warnings": _WARNINGS,
    "wrappers": _from(
        "core.fabric", _FabricDataLoader="FabricDataLoader", _FabricModule="FabricModule",
        _FabricOptimizer="FabricOptimizer",
    ),
}  # fmt: skip

MODULES = MappingProxyType(
    {
        "lightning": {**_MAIN, **_FABRIC, **_VERSION},
        **{f"lightning.pytorch.{name}".rstrip("."): table for name, table in _PYTORCH.items()},
        **{f"lightning.fabric.{name}".rstrip("."): table for name, table in _FABRIC_MODULES.items()},
    }
)
"""For each module of Lightning's its names, each with `"module:attribute"` of what it is here."""
