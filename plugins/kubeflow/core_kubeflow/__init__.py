"""A run's progress in the status of its TrainJob, where Kubeflow Trainer started it.

from core.callbacks import TrainJobProgress
"""

from core_kubeflow._version import __version__
from core_kubeflow.status_server import StatusServer
from core_kubeflow.train_job_progress import TrainJobProgress

__all__ = ["StatusServer", "TrainJobProgress", "__version__"]
