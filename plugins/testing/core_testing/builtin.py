"""The suites of what comes with core itself, which `core check` and the tests run."""

from __future__ import annotations

import csv
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from core_testing.accelerator import AcceleratorConformance
from core_testing.checkpoint_io import CheckpointIOConformance
from core_testing.cluster_environment import ClusterEnvironmentConformance
from core_testing.launcher import LauncherConformance
from core_testing.logger import LoggerConformance
from core_testing.precision import PrecisionConformance
from core_testing.strategy import ONE_PROCESS, StrategyConformance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core import Logger


class TestSingleDevice(StrategyConformance):
    """One process, with which all others are compared."""

    alias = "single_device"
    num_processes = 1
    expected_capabilities = ONE_PROCESS


class TestCPU(AcceleratorConformance):
    """The processor."""

    alias = "cpu"


class TestCUDA(AcceleratorConformance):
    """GPUs of NVIDIA and AMD."""

    alias = "cuda"


class TestMPS(AcceleratorConformance):
    """The GPU of an Apple machine, which has no float64."""

    alias = "mps"
    dtype = torch.float32
    tolerance = 1e-4


class TestSingle(PrecisionConformance):
    """`32-true`."""

    alias = "32-true"


class TestDouble(PrecisionConformance):
    """`64-true`."""

    alias = "64-true"


class TestHalf(PrecisionConformance):
    """`16-true`, without a scaled loss."""

    alias = "16-true"


class TestBFloat16(PrecisionConformance):
    """`bf16-true`: eight bits of a mantissa."""

    alias = "bf16-true"
    tolerance = 0.2


class TestMixedHalf(PrecisionConformance):
    """`16-mixed`, which a CPU refuses."""

    alias = "16-mixed"


class TestMixedBFloat16(PrecisionConformance):
    """`bf16-mixed`."""

    alias = "bf16-mixed"


class TestDistributed(CheckpointIOConformance):
    """A folder, to which every rank writes its part; the default."""

    alias = "distributed"


class TestAsync(CheckpointIOConformance):
    """The same, in the background."""

    alias = "async"


class TestSafetensors(CheckpointIOConformance):
    """Weights alone, for other programs: other tensors are refused."""

    alias = "safetensors"
    known_failures = {
        "test_a_state_comes_back": "it holds weights and plain values, and refuses other tensors"
    }


class TestTorchFile(CheckpointIOConformance):
    """One file."""

    alias = "torch"


class TestLocal(ClusterEnvironmentConformance):
    """No scheduler: the launcher makes the processes."""

    alias = "local"
    malformed = "MASTER_PORT"


class TestTorchElastic(ClusterEnvironmentConformance):
    """`torchrun`."""

    alias = "torchelastic"
    variables = {
        **{
            "RANK": "1",
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
        },
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "TORCHELASTIC_RUN_ID": "a-job"},
    }
    expected = {
        **{"world_size": 2, "global_rank": 1, "local_rank": 1, "node_rank": 0},
        **{"main_address": "127.0.0.1", "main_port": 29511},
    }
    devices = (2, 1)
    malformed = "WORLD_SIZE"


class TestSLURM(ClusterEnvironmentConformance):
    """`srun`, on two nodes."""

    alias = "slurm"
    variables = {
        **{
            "SLURM_JOB_ID": "77",
            "SLURM_NTASKS": "4",
            "SLURM_PROCID": "3",
            "SLURM_LOCALID": "1",
            "SLURM_NODEID": "1",
        },
        **{
            "SLURM_NODELIST": "node[1-2]",
            "SLURM_NNODES": "2",
            "SLURM_STEP_NUM_TASKS": "4",
            "SLURM_STEP_ID": "0",
        },
        **{
            "SLURM_JOB_NAME": "train",
            "SLURM_NTASKS_PER_NODE": "2",
            "SLURM_STEP_NODELIST": "node[1-2]",
        },
        **{
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_STEP_NUM_NODES": "2",
            "SLURM_TASKS_PER_NODE": "2(x2)",
        },
    }
    expected = {
        "world_size": 4,
        "global_rank": 3,
        "local_rank": 1,
        "node_rank": 1,
        "main_address": "node1",
    }
    devices = (2, 2)
    malformed = "SLURM_PROCID"


class TestMPI(ClusterEnvironmentConformance):
    """Open MPI's `mpirun`."""

    alias = "mpi"
    variables = {
        **{
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        },
        **{
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "OMPI_COMM_WORLD_NODE_RANK": "1",
            "PMIX_NAMESPACE": "job-1",
        },
        **{"OMPI_MCA_orte_hnp_uri": "1.0;tcp://127.0.0.1:4000", "PMIX_RANK": "1"},
    }
    expected = {"world_size": 2, "global_rank": 1, "local_rank": 1, "node_rank": 0}
    devices = (2, 1)
    malformed = "OMPI_COMM_WORLD_RANK"


class TestLSF(ClusterEnvironmentConformance):
    """`jsrun`."""

    alias = "lsf"
    variables = {
        **{"LSB_JOBID": "7", "JSM_NAMESPACE_SIZE": "2", "JSM_NAMESPACE_RANK": "1"},
        **{"JSM_NAMESPACE_LOCAL_RANK": "1", "JSM_NAMESPACE_LOCAL_SIZE": "2"},
    }
    expected = {"world_size": 2, "global_rank": 1, "local_rank": 1, "node_rank": 0}
    devices = (2, 1)
    malformed = "JSM_NAMESPACE_RANK"

    def job_variables(self, folder: Path) -> Mapping[str, str]:
        """The rank file too, which LSF writes."""
        rank_file = folder / "ranks"
        rank_file.write_text(f"batch\n{socket.gethostname()}\n{socket.gethostname()}\n")
        return {**self.variables, "LSB_DJOB_RANKFILE": str(rank_file)}


class TestInPlace(LauncherConformance):
    """No process is made."""

    alias = "in_place"
    num_processes = 1


class TestSubprocess(LauncherConformance):
    """The script is run again."""

    alias = "subprocess"


class TestSpawn(LauncherConformance):
    """New interpreters."""

    alias = "spawn"


class TestFork(LauncherConformance):
    """Copies of this process."""

    alias = "fork"


class TestForkserver(LauncherConformance):
    """Copies of a small process."""

    alias = "forkserver"


class TestCSV(LoggerConformance):
    """Rows of a file."""

    alias = "csv"

    def read(self, logger: Logger, folder: Path) -> list[tuple[int, str, float]]:
        """The values that have arrived."""
        with next(folder.rglob("metrics.csv")).open(newline="") as file:
            rows = list(csv.DictReader(file))
        return [
            (int(row["step"]), name, float(text))
            for row in rows
            for name, text in row.items()
            if text and name not in ("step", "epoch")
        ]
