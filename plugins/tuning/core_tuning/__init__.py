"""Searches for a learning rate and a batch size, and an accumulation window that changes by epochs.

from core import Tuner
from core.callbacks import BatchSizeFinder, GradientAccumulationScheduler, LearningRateFinder

Tuner(trainer).lr_find(net)
"""

from core_tuning._version import __version__
from core_tuning.batch_size_finder import BatchSizeFinder
from core_tuning.gradient_accumulation_scheduler import GradientAccumulationScheduler
from core_tuning.learning_rate_curve import LearningRateCurve
from core_tuning.learning_rate_finder import LearningRateFinder
from core_tuning.tuner import Tuner

__all__ = [
    "BatchSizeFinder",
    "GradientAccumulationScheduler",
    "LearningRateCurve",
    "LearningRateFinder",
    "Tuner",
    "__version__",
]
