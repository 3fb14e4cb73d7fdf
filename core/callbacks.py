"""The callbacks, which core-training brings; this is their public module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core_training.averaging import EMA, StochasticWeightAveraging, WeightAveraging
    from core_training.callbacks import (
        Callback,
        EarlyStopping,
        GoBack,
        LambdaCallback,
        ModelCheckpoint,
        ModelSummary,
        OnExceptionCheckpoint,
        ProgressBar,
        RichProgressBar,
        StateKeeper,
        Timer,
        check_int,
    )
    from core_training.finetuning import BackboneFinetuning, BaseFinetuning, ModelPruning
    from core_training.monitors import (
        DeviceStatsMonitor,
        LearningRateMonitor,
        ThroughputMonitor,
    )
    from core_training.predictions import BasePredictionWriter
    from core_training.tuning import (
        BatchSizeFinder,
        GradientAccumulationScheduler,
        LearningRateFinder,
    )

__all__ = [
    "EMA",
    "BackboneFinetuning",
    "BaseFinetuning",
    "BasePredictionWriter",
    "BatchSizeFinder",
    "Callback",
    "DeviceStatsMonitor",
    "EarlyStopping",
    "GoBack",
    "GradientAccumulationScheduler",
    "LambdaCallback",
    "LearningRateFinder",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelPruning",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "ProgressBar",
    "RichProgressBar",
    "StateKeeper",
    "StochasticWeightAveraging",
    "ThroughputMonitor",
    "Timer",
    "WeightAveraging",
    "check_int",
]

__getattr__, __dir__ = lazy_exports(__name__, open_to_plugins=True)
