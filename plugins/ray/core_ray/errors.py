"""The error of a worker that is gone."""

from core import WorkerError


class LostWorkerError(WorkerError):
    """A worker's process, or its node, is gone. `RayLauncher(max_failures=...)` starts the run
    again after it.
    """
