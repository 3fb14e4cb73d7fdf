"""The callbacks: actions around training, apart from the research code. Each is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.door import door

if TYPE_CHECKING:
    from core.trainer.callbacks.backbone_finetuning import BackboneFinetuning
    from core.trainer.callbacks.base_finetuning import BaseFinetuning
    from core.trainer.callbacks.batch_size_finder import BatchSizeFinder
    from core.trainer.callbacks.device_stats_monitor import DeviceStatsMonitor
    from core.trainer.callbacks.early_stopping import EarlyStopping
    from core.trainer.callbacks.ema import EMA
    from core.trainer.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
    from core.trainer.callbacks.lambda_callback import LambdaCallback
    from core.trainer.callbacks.learning_rate_finder import LearningRateFinder
    from core.trainer.callbacks.learning_rate_monitor import LearningRateMonitor
    from core.trainer.callbacks.memory_checkpoint import MemoryCheckpoint
    from core.trainer.callbacks.model_checkpoint import ModelCheckpoint
    from core.trainer.callbacks.model_pruning import ModelPruning
    from core.trainer.callbacks.model_summary import ModelSummary
    from core.trainer.callbacks.on_exception_checkpoint import OnExceptionCheckpoint
    from core.trainer.callbacks.prediction_writer import BasePredictionWriter
    from core.trainer.callbacks.progress_bar import ProgressBar
    from core.trainer.callbacks.rich_progress_bar import RichProgressBar
    from core.trainer.callbacks.stochastic_weight_averaging import StochasticWeightAveraging
    from core.trainer.callbacks.throughput_monitor import ThroughputMonitor
    from core.trainer.callbacks.timer import Timer
    from core.trainer.callbacks.weight_averaging import WeightAveraging
    from core.trainer.hooks.callback import Callback

__all__ = [
    "EMA",
    "BackboneFinetuning",
    "BaseFinetuning",
    "BasePredictionWriter",
    "BatchSizeFinder",
    "Callback",
    "DeviceStatsMonitor",
    "EarlyStopping",
    "GradientAccumulationScheduler",
    "LambdaCallback",
    "LearningRateFinder",
    "LearningRateMonitor",
    "MemoryCheckpoint",
    "ModelCheckpoint",
    "ModelPruning",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "ProgressBar",
    "RichProgressBar",
    "StochasticWeightAveraging",
    "ThroughputMonitor",
    "Timer",
    "WeightAveraging",
]

__getattr__, __dir__ = door(
    __name__,
    {
        ".ema": ("EMA",),
        ".prediction_writer": ("BasePredictionWriter",),
        ".backbone_finetuning": ("BackboneFinetuning",),
        ".base_finetuning": ("BaseFinetuning",),
        ".batch_size_finder": ("BatchSizeFinder",),
        "..hooks.callback": ("Callback",),
        ".device_stats_monitor": ("DeviceStatsMonitor",),
        ".early_stopping": ("EarlyStopping",),
        ".gradient_accumulation_scheduler": ("GradientAccumulationScheduler",),
        ".lambda_callback": ("LambdaCallback",),
        ".learning_rate_finder": ("LearningRateFinder",),
        ".learning_rate_monitor": ("LearningRateMonitor",),
        ".memory_checkpoint": ("MemoryCheckpoint",),
        ".model_checkpoint": ("ModelCheckpoint",),
        ".model_pruning": ("ModelPruning",),
        ".model_summary": ("ModelSummary",),
        ".on_exception_checkpoint": ("OnExceptionCheckpoint",),
        ".progress_bar": ("ProgressBar",),
        ".rich_progress_bar": ("RichProgressBar",),
        ".stochastic_weight_averaging": ("StochasticWeightAveraging",),
        ".throughput_monitor": ("ThroughputMonitor",),
        ".timer": ("Timer",),
        ".weight_averaging": ("WeightAveraging",),
    },
)
