"""Averages of the weights that training passes through.

from core.callbacks import EMA, StochasticWeightAveraging, WeightAveraging
"""

from core_training.averaging.ema import EMA
from core_training.averaging.stochastic_weight_averaging import StochasticWeightAveraging
from core_training.averaging.weight_averaging import WeightAveraging

__all__ = ["EMA", "StochasticWeightAveraging", "WeightAveraging"]
