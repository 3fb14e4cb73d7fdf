"""mpirun and mpiexec: Open MPI, MVAPICH2, and the Hydra family (MPICH, Intel MPI)."""

from __future__ import annotations

import functools
import importlib
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.cluster.ports import reserve_port
from core.cluster.variables import (
    all_set,
    check_world,
    derived_port,
    read_address,
    read_int,
    read_port,
)
from core.contract import Absent, ClusterEnvironment, ConfigurationError, Found

if TYPE_CHECKING:
    from core.contract.accelerator import Detection


@dataclass(frozen=True, slots=True)
class _Dialect:
    """The variables in which an MPI gives processes their ranks; those in `job` are alike on all
    ranks of a run.
    """

    name: str
    rank: str
    world_size: str
    local_rank: str
    local_size: str
    job: tuple[str, ...] = ()


_DIALECTS = (
    _Dialect(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    _Dialect(
        "MVAPICH2",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    _Dialect("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


class MPIEnvironment(ClusterEnvironment):
    """`mpirun` or `mpiexec`, one process a rank. The ranks of a node follow each other, which is
    mpirun's default.

    Variables:
        OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE: Open MPI.
        MV2_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE: MVAPICH2.
        PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS: MPICH and Intel MPI.
        PMIX_NAMESPACE, OMPI_MCA_ess_base_jobid: Open MPI's name of the run; the port is derived
            from it.
        MASTER_ADDR, MASTER_PORT: where the ranks meet. With Open MPI on one node they may be left
            out.

    What the variables lack comes from rank 0 through mpi4py, if that is installed.
    """

    @classmethod
    def detect(cls) -> Detection:
        """Found if the variables of one MPI are set."""
        dialect = _find_dialect()
        if dialect is None:
            return Absent("no rank of Open MPI, MVAPICH2, MPICH or Intel MPI is set")
        return Found(read_int(dialect.world_size, hint=_hint(dialect), minimum=1), priority=70)

    @property
    def main_address(self) -> str:
        """`MASTER_ADDR`; on one node this machine; else the host of rank 0, by mpi4py."""
        address = read_address()
        if not address and self._local_size() == self.world_size():
            return "127.0.0.1"
        return address or _meeting_point()[0]

    @property
    def main_port(self) -> int:
        """`MASTER_PORT`; else it follows from the run's name; else rank 0 chooses, and mpi4py
        broadcasts it.
        """
        job = self.job_id()
        port = read_port("Unset it, or set the same port for all ranks.")
        if port is None and job:
            return derived_port(job)
        return port or _meeting_point()[1]

    def world_size(self) -> int:
        """Number of ranks that mpirun started."""
        return self._read("world_size", minimum=1)

    def global_rank(self) -> int:
        """Number of this rank."""
        return self._read("rank")

    def local_rank(self) -> int:
        """Number of this rank on its node."""
        return self._read("local_rank")

    def node_rank(self) -> int:
        """Number of this node, given that the ranks of a node follow each other."""
        return self.global_rank() // self._local_size()

    def _local_size(self) -> int:
        return self._read("local_size", minimum=1)

    def _read(self, field: str, minimum: int = 0) -> int:
        dialect = _dialect()
        return read_int(getattr(dialect, field), hint=_hint(dialect), minimum=minimum)

    def validate(self, num_devices: int, num_nodes: int) -> None:
        """The number of ranks must be the number of devices, and a node's ranks must follow each
        other.

        Raises:
            ConfigurationError: they don't.
        """
        local, world_size, dialect = self._local_size(), self.world_size(), _dialect()
        check_world(
            starter="mpirun",
            world_size=world_size,
            world_variable=dialect.world_size,
            num_devices=num_devices,
            num_nodes=num_nodes,
            cure=f"Pass devices={local} and num_nodes={max(1, world_size // local)}, "
            f"or start it with mpirun -n {num_devices * num_nodes}.",
            num_local=local,
        )
        # `node_rank` is right only if each node has consecutive ranks.
        if self.global_rank() % local != self.local_rank():
            raise ConfigurationError(
                f"Rank {self.global_rank()} is number {self.local_rank()} of {local} on its node, "
                "so ranks are dealt out over the nodes in turn. They have to fill one node after "
                "the other: use mpirun --map-by slot."
            )

    def job_id(self) -> str | None:
        """The run's name, if this MPI gives one."""
        return next((os.environ[name] for name in _dialect().job if os.environ.get(name)), None)


def _find_dialect() -> _Dialect | None:
    # srun sets PMI_RANK too, but no local rank: then it is SLURM's environment that knows.
    return next(
        (dialect for dialect in _DIALECTS if all_set(dialect.rank, dialect.local_rank)), None
    )


def _dialect() -> _Dialect:
    dialect = _find_dialect()
    if dialect is None:
        raise ConfigurationError(
            "This process was not started by MPI: neither OMPI_COMM_WORLD_RANK, "
            "MV2_COMM_WORLD_RANK nor PMI_RANK is set with its local rank. Start the script with "
            "mpirun, or leave the cluster environment to be detected."
        )
    return dialect


def _hint(dialect: _Dialect) -> str:
    return f"{dialect.name}'s mpirun sets it for every rank."


@functools.cache
def _meeting_point() -> tuple[str, int]:
    """Host and a free port of rank 0, broadcast to all ranks by MPI itself. All ranks call this
    together.

    Raises:
        ConfigurationError: mpi4py isn't installed.
    """
    try:
        world: Any = importlib.import_module("mpi4py.MPI").COMM_WORLD
    except ImportError as error:
        raise ConfigurationError(
            "mpirun's variables don't say where rank 0 can be reached. Set MASTER_ADDR (host of "
            "rank 0) and MASTER_PORT (a free port there) for all ranks, or install mpi4py, through "
            "which rank 0 tells the others."
        ) from error
    # The port is reserved for as long as the answer is kept.
    own = None
    if world.Get_rank() == 0:
        own = (socket.gethostname(), reserve_port(_meeting_point, host=""))
    host, port = world.bcast(own, root=0)
    return str(host), int(port)
