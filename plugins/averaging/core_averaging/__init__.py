"""Averages of the weights that training passes through.

from core.callbacks import EMA, StochasticWeightAveraging, WeightAveraging
"""

from core_averaging._version import __version__
from core_averaging.ema import EMA
from core_averaging.stochastic_weight_averaging import StochasticWeightAveraging
from core_averaging.weight_averaging import WeightAveraging

__all__ = ["EMA", "StochasticWeightAveraging", "WeightAveraging", "__version__"]
