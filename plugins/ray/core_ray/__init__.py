"""Ranks on the workers of a Ray cluster, for `core`:
`Trainer(strategy="ddp", devices=2, num_nodes=2, plugins="ray")`.

Names are imported when they are asked for, and Ray itself when processes are about to be made.
"""

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports
from core_ray._version import __version__

if TYPE_CHECKING:
    from core_ray.environment import RayEnvironment, RayTrainEnvironment
    from core_ray.errors import LostWorkerError
    from core_ray.launcher import RayLauncher
    from core_ray.preemption import RayTrainPreemption

__all__ = [
    "LostWorkerError",
    "RayEnvironment",
    "RayLauncher",
    "RayTrainEnvironment",
    "RayTrainPreemption",
    "__version__",
]

__getattr__, __dir__ = lazy_exports(__name__)
