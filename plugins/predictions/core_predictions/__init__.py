"""A base of callbacks that write predictions to storage.

from core.callbacks import BasePredictionWriter
"""

from core_predictions._version import __version__
from core_predictions.prediction_writer import BasePredictionWriter

__all__ = ["BasePredictionWriter", "__version__"]
