"""The cluster environments: one class for each scheduler, chosen by the variables that it sets.

Where several are found, the most specific wins: torchrun inside srun, or mpirun inside a SLURM job,
knows the ranks.
"""

from core.cluster.local import LocalEnvironment
from core.cluster.lsf import LSFEnvironment
from core.cluster.mpi import MPIEnvironment
from core.cluster.ports import reserve_port
from core.cluster.slurm import SLURMEnvironment
from core.cluster.torchelastic import TorchElasticEnvironment
from core.cluster.variables import read_int, read_port, read_text
from core.lazy_exports import lazy_exports

__all__ = [
    "LSFEnvironment",
    "LocalEnvironment",
    "MPIEnvironment",
    "SLURMEnvironment",
    "TorchElasticEnvironment",
    "read_int",
    "read_port",
    "read_text",
    "reserve_port",
]

__getattr__, __dir__ = lazy_exports(__name__, kind="cluster environment")
