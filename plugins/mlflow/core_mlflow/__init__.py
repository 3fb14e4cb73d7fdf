"""MLflow as a logger of `core`."""

from core_mlflow._version import __version__
from core_mlflow.logger import MLFlowLogger

__all__ = ["MLFlowLogger", "__version__"]
