"""Lightning's modules as tables: the names of each, and where core or this package has them."""

from __future__ import annotations

from types import MappingProxyType

VERSION = "2.6.6"
"""The release of Lightning whose names and forms these are."""

_OWN = "core_lightning"
STAND_INS = f"{_OWN}.stand_ins"
"""The module of the names that can be imported, and not used."""

_HOMES = """
core: CheckpointIO Logger ReduceOp Strategy rank_zero_only MisconfigurationException=ConfigurationError
core.accelerators: find_usable_cuda_devices
core.callbacks: Callback Checkpoint=ModelCheckpoint GradientAccumulationScheduler LambdaCallback ModelSummary
core.callbacks: OnExceptionCheckpoint ProgressBar RichModelSummary=ModelSummary Timer
core.checkpoint: AsyncCheckpointIO
core.fabric: LightningOptimizer=FabricOptimizer _FabricDataLoader=FabricDataLoader _FabricModule=FabricModule
core.fabric: _FabricOptimizer=FabricOptimizer
core.precision: Precision
core.profilers: Profiler PyTorchProfiler
core.registry: ACCELERATOR_REGISTRY STRATEGY_REGISTRY AcceleratorRegistry=ACCELERATOR_REGISTRY
core.registry: StrategyRegistry=STRATEGY_REGISTRY
core.strategies: ParallelStrategy
core_finetuning: BackboneFinetuning BaseFinetuning ModelPruning
core_monitors: DeviceStatsMonitor LearningRateMonitor ThroughputMonitor
core_lightning: TorchCheckpointIO=LightningCheckpointIO
enum: LightningEnum=StrEnum
torch.nn.parallel: DistributedDataParallel
torch.optim: Optimizable=Optimizer
torch.optim.lr_scheduler: LRScheduler ReduceLROnPlateau
._accelerators: Accelerator CPUAccelerator CUDAAccelerator MPSAccelerator
._callbacks: BasePredictionWriter ModelCheckpoint RichProgressBar RichProgressBarTheme TQDMProgressBar WriteInterval
._early_stopping: EarlyStopping EarlyStoppingReason
._environments: ClusterEnvironment KubeflowEnvironment LSFEnvironment LightningEnvironment MPIEnvironment
._environments: SLURMEnvironment TorchElasticEnvironment
._loggers: CSVLogger CometLogger DummyLogger MLFlowLogger TensorBoardLogger WandbLogger
._fabric_loggers: CSVLogger TensorBoardLogger
._precisions: DoublePrecision HalfPrecision MixedPrecision
._stochastic_averaging: StochasticWeightAveraging
._tuning: BatchSizeFinder LearningRateFinder Tuner
._weight_averaging: EMAWeightAveraging WeightAveraging
.batches: extract_batch_size has_iterable_dataset has_len sized_len suggested_max_num_workers
.chosen_devices: _AcceleratorConnector is_cuda_available num_cuda_devices
.collectives: Collective SingleDeviceCollective TorchCollective
.combined_loader: CombinedLoader
.demos.boring_classes: BoringDataModule BoringDataModuleNoLen BoringModel DemoModel ManualOptimBoringModel Net
.demos.boring_classes: RandomDataset RandomDictDataset RandomIterableDataset RandomIterableDatasetWithLen
.demos.lstm: LightningLSTM SequenceSampler SimpleLSTM
.demos.mnist_datamodule: MNIST MNISTDataModule
.demos.transformer: Dictionary LightningTransformer PositionalEncoding Transformer WikiText2 tokenize
.fabric: Fabric
.hyperparameters: HyperparametersMixin
.imports: _IS_INTERACTIVE _IS_WINDOWS _NUMPY_AVAILABLE _OMEGACONF_AVAILABLE _RICH_AVAILABLE _TORCHVISION_AVAILABLE
.imports: _TORCHMETRICS_GREATER_EQUAL_1_0_0 _TORCH_GREATER_EQUAL_2_0 _TORCH_GREATER_EQUAL_2_1 _TORCH_GREATER_EQUAL_2_2
.imports: _TORCH_GREATER_EQUAL_2_3 _TORCH_GREATER_EQUAL_2_4 _TORCH_GREATER_EQUAL_2_5 _TORCH_GREATER_EQUAL_2_6
.imports: _TORCH_GREATER_EQUAL_2_7 _TORCH_GREATER_EQUAL_2_8 _try_import_module module_available package_available
.layer_sync: LayerSync TorchSyncBatchNorm
.loops: _EvaluationLoop=EvaluationLoop _FitLoop=FitLoop _PredictionLoop=EvaluationLoop
.memory: garbage_collection_cuda is_cuda_out_of_memory is_cudnn_snafu is_oom_error is_out_of_cpu_memory recursive_detach
.model_helpers: find_shared_parameters from_compiled get_torchvision_model is_overridden set_shared_parameters
.model_helpers: to_uncompiled
.model_summary: ModelSummary summarize
.module: LightningDataModule LightningModule _load_from_checkpoint
.names: __version__=VERSION
.params: _add_prefix _convert_json_serializable _convert_params _flatten_dict _sanitize_callable_params _sanitize_params
.parsing: AttributeDict collect_init_args get_init_args is_picklable lightning_getattr lightning_hasattr
.parsing: lightning_setattr save_hyperparameters
.profilers: AdvancedProfiler PassThroughProfiler SimpleProfiler
.ranks: LightningDeprecationWarning PossibleUserWarning WarningCache disable_possible_user_warnings
.ranks: rank_prefixed_message rank_zero_debug rank_zero_deprecation rank_zero_experiment rank_zero_info rank_zero_warn
.seeding: isolate_rng reset_seed seed_everything
.servable: ServableModule
.stand_ins: BitsandbytesPrecision DeepSpeedPrecision FSDPPrecision LitLogger ServableModuleValidator SingleTPUStrategy
.stand_ins: SpikeDetection TPUAccelerator TransformerEnginePrecision XLAAccelerator XLACheckpointIO XLAEnvironment
.stand_ins: XLAPrecision XLAProfiler _AutomaticOptimization _DataFetcher _Loop _ManualOptimization _TrainingEpochLoop
.states: RunningStage TrainerFn TrainerState TrainerStatus
.strategies: DDPStrategy DataParallelStrategy DeepSpeedStrategy FSDPStrategy ModelParallelStrategy SingleDeviceStrategy
.strategies: SingleDeviceXLAStrategy XLAFSDPStrategy XLAStrategy
.throughput: Throughput ThroughputMonitor measure_flops
.trainer: Trainer
.types: EVAL_DATALOADERS LRSchedulerConfig LRSchedulerConfigType LRSchedulerPLType LRSchedulerTypeTuple
.types: LRSchedulerTypeUnion OptimizerConfig OptimizerLRScheduler OptimizerLRSchedulerConfig STEP_OUTPUT
.types: TRAIN_DATALOADERS _DEVICE _EVALUATE_OUTPUT _MAP_LOCATION_TYPE _METRIC _NUMBER _PATH _PREDICT_OUTPUT
.cli: LRSchedulerCallable LightningCLI OptimizerCallable instantiate_class
.cli_parser: ArgsType LRSchedulerTypeTuple LightningArgumentParser ReduceLROnPlateau
.saved_config: SaveConfigCallback
.utilities: GradClipAlgorithmType _unwrap_objects cli_lightning_logo convert_tensors_to_scalars get_filesystem grad_norm
.utilities: is_shared_filesystem is_wrapped move_data_to_device
"""
"""Modules, those of this package from the dot on, and Lightning's names there; what follows a `=` is the name there."""

_FIRST = {
    "lightning.fabric.loggers": "._fabric_loggers",
    "lightning.fabric.utilities": ".throughput",
    "lightning.pytorch.cli": ".cli_parser",
    "lightning.pytorch.utilities.model_summary": ".model_summary",
}
"""Modules of Lightning's, and those below, whose names are looked for in this home before the first one in order."""

_BOTH = """
accelerators: accelerator Accelerator; cpu CPUAccelerator; mps MPSAccelerator; xla XLAAccelerator
loggers: csv_logs CSVLogger; tensorboard TensorBoardLogger
plugins.environments: cluster_environment ClusterEnvironment; kubeflow KubeflowEnvironment; lsf LSFEnvironment
plugins.environments: lightning LightningEnvironment; mpi MPIEnvironment; slurm SLURMEnvironment; xla XLAEnvironment
plugins.environments: torchelastic TorchElasticEnvironment
plugins.precision: amp MixedPrecision; bitsandbytes BitsandbytesPrecision; deepspeed DeepSpeedPrecision
plugins.precision: double DoublePrecision; fsdp FSDPPrecision; half HalfPrecision; precision Precision
plugins.precision: transformer_engine TransformerEnginePrecision; xla XLAPrecision
strategies: ddp DDPStrategy; deepspeed DeepSpeedStrategy; fsdp FSDPStrategy; model_parallel ModelParallelStrategy
strategies: parallel ParallelStrategy; strategy Strategy; xla XLAStrategy
strategies: single_device SingleDeviceStrategy; single_xla SingleDeviceXLAStrategy
utilities: exceptions MisconfigurationException; warnings PossibleUserWarning disable_possible_user_warnings
utilities: imports .imports
utilities: rank_zero LightningDeprecationWarning WarningCache rank_prefixed_message rank_zero_debug rank_zero_info
utilities: rank_zero rank_zero_deprecation rank_zero_only rank_zero_warn
utilities: . disable_possible_user_warnings is_shared_filesystem measure_flops move_data_to_device rank_zero_deprecation
utilities: . AttributeDict LightningEnum rank_zero_info rank_zero_only rank_zero_warn suggested_max_num_workers
"""
_PYTORCH = """
: . Callback LightningDataModule LightningModule Trainer __version__ seed_everything
: . cli_lightning_logo disable_possible_user_warnings
accelerators: . * AcceleratorRegistry; cuda CUDAAccelerator find_usable_cuda_devices
callbacks: batch_size_finder BatchSizeFinder; callback Callback; checkpoint Checkpoint; timer Timer
callbacks: device_stats_monitor DeviceStatsMonitor; early_stopping EarlyStopping EarlyStoppingReason
callbacks: finetuning BackboneFinetuning BaseFinetuning; lambda_function LambdaCallback; spike SpikeDetection
callbacks: gradient_accumulation_scheduler GradientAccumulationScheduler; lr_finder LearningRateFinder
callbacks: lr_monitor LearningRateMonitor; model_checkpoint ModelCheckpoint; model_summary ModelSummary
callbacks: on_exception_checkpoint OnExceptionCheckpoint; prediction_writer BasePredictionWriter WriteInterval
callbacks: pruning ModelPruning; rich_model_summary RichModelSummary; throughput_monitor ThroughputMonitor
callbacks: stochastic_weight_avg StochasticWeightAveraging; weight_averaging EMAWeightAveraging WeightAveraging
callbacks.progress: progress_bar ProgressBar; rich_progress RichProgressBar RichProgressBarTheme
callbacks.progress: tqdm_progress TQDMProgressBar; . ProgressBar RichProgressBar TQDMProgressBar
cli: . ArgsType Callback LRSchedulerCallable LRSchedulerTypeTuple LightningArgumentParser LightningCLI
cli: . LightningDataModule LightningModule MisconfigurationException OptimizerCallable ReduceLROnPlateau
cli: . SaveConfigCallback Trainer get_filesystem instantiate_class is_overridden rank_zero_warn seed_everything
core: . LightningDataModule LightningModule LightningOptimizer; datamodule LightningDataModule; module LightningModule
core: optimizer LightningOptimizer; mixins.hparams_mixin HyperparametersMixin
core: saving _load_from_checkpoint get_filesystem
demos: boring_classes .demos.boring_classes; lstm .demos.lstm; mnist_datamodule .demos.mnist_datamodule
demos: transformer .demos.transformer
loggers: . CSVLogger CometLogger DummyLogger LitLogger Logger MLFlowLogger TensorBoardLogger WandbLogger
loggers: comet CometLogger; litlogger LitLogger; logger DummyLogger Logger rank_zero_experiment
loggers: mlflow MLFlowLogger; wandb WandbLogger
loops: evaluation_loop _EvaluationLoop; fetchers _DataFetcher; fit_loop _FitLoop; loop _Loop
loops: optimization _AutomaticOptimization _ManualOptimization; prediction_loop _PredictionLoop
loops: training_epoch_loop _TrainingEpochLoop
plugins: layer_sync .layer_sync
plugins.io: async_plugin AsyncCheckpointIO; checkpoint_plugin CheckpointIO; torch_plugin TorchCheckpointIO
plugins.io: . * XLACheckpointIO
profilers: advanced AdvancedProfiler; base PassThroughProfiler; profiler Profiler; pytorch PyTorchProfiler
profilers: simple SimpleProfiler; xla XLAProfiler
serve: servable_module ServableModule; servable_module_validator ServableModule ServableModuleValidator
strategies: . * StrategyRegistry
trainer: . Trainer seed_everything; trainer Trainer; states .states
trainer: connectors; connectors.accelerator_connector AcceleratorRegistry StrategyRegistry _AcceleratorConnector
tuner: tuning Tuner
utilities: . CombinedLoader GradClipAlgorithmType find_shared_parameters grad_norm is_picklable set_shared_parameters
utilities: combined_loader CombinedLoader; compile from_compiled to_uncompiled; grads grad_norm; seed isolate_rng
utilities: data extract_batch_size has_iterable_dataset sized_len; enums GradClipAlgorithmType LightningEnum
utilities: memory .memory; model_helpers get_torchvision_model is_overridden; parsing .parsing
utilities: model_summary.model_summary .model_summary
utilities: parameter_tying find_shared_parameters set_shared_parameters
utilities: types DistributedDataParallel EVAL_DATALOADERS LRScheduler LRSchedulerConfig LRSchedulerConfigType
utilities: types LRSchedulerPLType LRSchedulerTypeTuple LRSchedulerTypeUnion Optimizable OptimizerConfig
utilities: types OptimizerLRScheduler OptimizerLRSchedulerConfig ReduceLROnPlateau STEP_OUTPUT TRAIN_DATALOADERS
utilities: types _EVALUATE_OUTPUT _METRIC _NUMBER _PREDICT_OUTPUT
"""
_FABRIC = """
: . Fabric __version__ disable_possible_user_warnings is_wrapped seed_everything
accelerators: . ACCELERATOR_REGISTRY Accelerator CPUAccelerator CUDAAccelerator MPSAccelerator TPUAccelerator
accelerators: . XLAAccelerator find_usable_cuda_devices
accelerators: cuda CUDAAccelerator find_usable_cuda_devices is_cuda_available num_cuda_devices
fabric: . Fabric
loggers: . CSVLogger Logger TensorBoardLogger; logger Logger rank_zero_experiment
plugins: . AsyncCheckpointIO BitsandbytesPrecision CheckpointIO ClusterEnvironment DeepSpeedPrecision DoublePrecision
plugins: . FSDPPrecision HalfPrecision KubeflowEnvironment LSFEnvironment LightningEnvironment MPIEnvironment
plugins: . MixedPrecision Precision SLURMEnvironment TorchCheckpointIO TorchElasticEnvironment XLACheckpointIO
plugins: . TransformerEnginePrecision XLAEnvironment XLAPrecision
plugins.collectives: collective Collective; single_device SingleDeviceCollective; torch_collective TorchCollective
plugins.io: . * XLACheckpointIO; checkpoint_io CheckpointIO; torch_io TorchCheckpointIO
strategies: . * STRATEGY_REGISTRY SingleTPUStrategy; dp DataParallelStrategy; xla_fsdp XLAFSDPStrategy
utilities: . Throughput ThroughputMonitor; throughput .throughput
utilities: apply_func convert_tensors_to_scalars move_data_to_device; cloud_io get_filesystem is_shared_filesystem
utilities: data AttributeDict has_iterable_dataset has_len sized_len suggested_max_num_workers; enums LightningEnum
utilities: logger .params; seed isolate_rng reset_seed seed_everything
utilities: types LRScheduler Optimizable ReduceLROnPlateau ReduceOp _DEVICE _MAP_LOCATION_TYPE _PATH
wrappers: . Optimizable Precision Strategy _FabricDataLoader _FabricModule _FabricOptimizer _unwrap_objects
wrappers: . is_overridden is_wrapped move_data_to_device
"""
"""Packages, and of each the modules with their names; the package itself is a dot, and `*` all names below a package.

A package that isn't listed has all of them; a home stands for its names. A longer list goes on in a line that begins
likewise.
"""


def _modules(root: str, tables: str) -> dict[str, dict[str, str]]:
    listed: dict[str, list[str]] = {}
    for line in tables.split("\n"):
        package, _, entries = line.partition(": ")
        for module, *words in map(str.split, filter(None, entries.split("; "))):
            names = (name for word in words for name in _IN.get(word, [word]))
            listed.setdefault(f"{root}.{package}.{module}".rstrip("."), []).extend(names)
    for module in list(listed):
        while (module := module.rpartition(".")[0]) != "lightning":
            listed.setdefault(module, ["*"])
    return {module: {name: _target(module, name) for name in _names(listed, module)} for module in listed}


def _names(listed: dict[str, list[str]], module: str) -> set[str]:
    own = {name for name in listed[module] if name != "*"}
    below = (set(names) for other, names in listed.items() if other.startswith(f"{module}."))
    return own.union(*below) - {"*"} if "*" in listed[module] else own


def _target(module: str, name: str) -> str:
    homes = [home for place, home in _FIRST.items() if f"{module}.".startswith(f"{place}.")]
    home, original = next((home, _IN[home][name]) for home in (*homes, *_IN) if name in _IN[home])
    return f"{_OWN if home.startswith('.') else ''}{home}:{original}"


_IN: dict[str, dict[str, str]] = {}
for _home, _, _words in (row.partition(": ") for row in _HOMES.strip().split("\n")):
    _pairs = (word.partition("=") for word in _words.split())
    _IN.setdefault(_home, {}).update({name: original or name for name, _, original in _pairs})
_MODULES = _modules("lightning.pytorch", _BOTH + _PYTORCH) | _modules("lightning.fabric", _BOTH + _FABRIC)
_ROOT = "Callback Fabric LightningDataModule LightningModule Trainer __version__ seed_everything"

MODULES = MappingProxyType({"lightning": {name: _target("lightning", name) for name in _ROOT.split()}, **_MODULES})
"""For each module of Lightning's its names, each with `"module:attribute"` of what it is here."""
