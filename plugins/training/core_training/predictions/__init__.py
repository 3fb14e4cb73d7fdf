"""A base of callbacks that write predictions to storage.

from core.callbacks import BasePredictionWriter
"""

from core_training.predictions.prediction_writer import BasePredictionWriter

__all__ = ["BasePredictionWriter"]
