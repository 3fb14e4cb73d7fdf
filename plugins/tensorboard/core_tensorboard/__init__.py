"""TensorBoard as a logger of `core`."""

from core_tensorboard._version import __version__
from core_tensorboard.logger import TensorBoardLogger

__all__ = ["TensorBoardLogger", "__version__"]
