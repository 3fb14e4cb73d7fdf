"""What happens around training, apart from the research code. Each is imported when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.callbacks.callback import Callback
    from core.callbacks.device_stats_monitor import DeviceStatsMonitor
    from core.callbacks.early_stopping import EarlyStopping
    from core.callbacks.ema import EMA
    from core.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
    from core.callbacks.lambda_callback import LambdaCallback
    from core.callbacks.learning_rate_monitor import LearningRateMonitor
    from core.callbacks.model_checkpoint import ModelCheckpoint
    from core.callbacks.model_summary import ModelSummary
    from core.callbacks.on_exception_checkpoint import OnExceptionCheckpoint
    from core.callbacks.prediction_writer import BasePredictionWriter
    from core.callbacks.progress_bar import ProgressBar
    from core.callbacks.rich_progress_bar import RichProgressBar
    from core.callbacks.stochastic_weight_averaging import StochasticWeightAveraging
    from core.callbacks.throughput_monitor import ThroughputMonitor
    from core.callbacks.timer import Timer
    from core.callbacks.weight_averaging import WeightAveraging

__all__ = [
    "EMA",
    "BasePredictionWriter",
    "Callback",
    "DeviceStatsMonitor",
    "EarlyStopping",
    "GradientAccumulationScheduler",
    "LambdaCallback",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "ProgressBar",
    "RichProgressBar",
    "StochasticWeightAveraging",
    "ThroughputMonitor",
    "Timer",
    "WeightAveraging",
]

_MODULES = {
    "EMA": "ema",
    "BasePredictionWriter": "prediction_writer",
    "Callback": "callback",
    "DeviceStatsMonitor": "device_stats_monitor",
    "EarlyStopping": "early_stopping",
    "GradientAccumulationScheduler": "gradient_accumulation_scheduler",
    "LambdaCallback": "lambda_callback",
    "LearningRateMonitor": "learning_rate_monitor",
    "ModelCheckpoint": "model_checkpoint",
    "ModelSummary": "model_summary",
    "OnExceptionCheckpoint": "on_exception_checkpoint",
    "ProgressBar": "progress_bar",
    "RichProgressBar": "rich_progress_bar",
    "StochasticWeightAveraging": "stochastic_weight_averaging",
    "ThroughputMonitor": "throughput_monitor",
    "Timer": "timer",
    "WeightAveraging": "weight_averaging",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'core.callbacks' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"core.callbacks.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
