"""Searches for a learning rate and a batch size, and an accumulation window that changes by epochs.

from core import Tuner
from core.callbacks import BatchSizeFinder, GradientAccumulationScheduler, LearningRateFinder

Tuner(trainer).lr_find(net)
"""

from core_training.tuning.batch_size_finder import BatchSizeFinder
from core_training.tuning.gradient_accumulation_scheduler import GradientAccumulationScheduler
from core_training.tuning.learning_rate_curve import LearningRateCurve
from core_training.tuning.learning_rate_finder import LearningRateFinder
from core_training.tuning.tuner import Tuner

__all__ = [
    "BatchSizeFinder",
    "GradientAccumulationScheduler",
    "LearningRateCurve",
    "LearningRateFinder",
    "Tuner",
]
