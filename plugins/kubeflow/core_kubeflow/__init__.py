"""Kubeflow Trainer: the pods of a TrainJob, and a run's progress in the TrainJob's status.

from core.callbacks import TrainJobProgress
"""

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports
from core_kubeflow._version import __version__

if TYPE_CHECKING:
    from core_kubeflow.environment import KubeflowEnvironment
    from core_kubeflow.status_server import StatusServer
    from core_kubeflow.train_job_progress import TrainJobProgress

__all__ = ["KubeflowEnvironment", "StatusServer", "TrainJobProgress", "__version__"]

__getattr__, __dir__ = lazy_exports(__name__)
