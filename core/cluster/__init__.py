"""Who started the processes: one class for each scheduler, chosen by what its variables say.

Where several are found, the most specific wins: torchrun inside srun, or mpirun inside a SLURM job, knows the ranks.
"""

from typing import Any

from core.cluster.kubeflow import KubeflowEnvironment
from core.cluster.local import LocalEnvironment
from core.cluster.lsf import LSFEnvironment
from core.cluster.mpi import MPIEnvironment
from core.cluster.slurm import SLURMEnvironment
from core.cluster.torchelastic import TorchElasticEnvironment

__all__ = [
    "KubeflowEnvironment",
    "LSFEnvironment",
    "LocalEnvironment",
    "MPIEnvironment",
    "SLURMEnvironment",
    "TorchElasticEnvironment",
]


def __getattr__(name: str) -> Any:
    from core.registry.lazy_exports import plugin_class

    return plugin_class("cluster environment", name, __name__)
