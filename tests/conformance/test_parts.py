"""The built-in parts beside strategies."""

import csv
import socket
from pathlib import Path

import pytest
import torch

from core.testing import (
    AcceleratorConformance,
    CheckpointIOConformance,
    ClusterEnvironmentConformance,
    LauncherConformance,
    LoggerConformance,
    PrecisionConformance,
)


class TestCPU(AcceleratorConformance):
    alias = "cpu"


@pytest.mark.gpu
class TestCUDA(AcceleratorConformance):
    alias = "cuda"


class TestMPS(AcceleratorConformance):
    alias = "mps"
    dtype = torch.float32
    tolerance = 1e-4


class TestSingle(PrecisionConformance):
    alias = "32-true"


class TestDouble(PrecisionConformance):
    alias = "64-true"


class TestHalf(PrecisionConformance):
    alias = "16-true"


class TestBFloat16(PrecisionConformance):
    alias = "bf16-true"
    tolerance = 0.2


class TestMixedHalf(PrecisionConformance):
    alias = "16-mixed"


class TestMixedBFloat16(PrecisionConformance):
    alias = "bf16-mixed"


class TestTorchFile(CheckpointIOConformance):
    alias = "torch"


class TestLocal(ClusterEnvironmentConformance):
    alias = "local"
    malformed = "MASTER_PORT"


class TestTorchElastic(ClusterEnvironmentConformance):
    alias = "torchelastic"
    variables = {
        **{"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "TORCHELASTIC_RUN_ID": "a-job"},
    }
    expected = {
        **{"world_size": 2, "global_rank": 1, "local_rank": 1, "node_rank": 0},
        **{"main_address": "127.0.0.1", "main_port": 29511},
    }
    devices = (2, 1)
    malformed = "WORLD_SIZE"


class TestSLURM(ClusterEnvironmentConformance):
    alias = "slurm"
    variables = {
        **{"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"},
        **{"SLURM_NODELIST": "node[1-2]", "SLURM_NNODES": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_ID": "0"},
        **{"SLURM_JOB_NAME": "train", "SLURM_NTASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "node[1-2]"},
        **{"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_STEP_NUM_NODES": "2", "SLURM_TASKS_PER_NODE": "2(x2)"},
    }
    expected = {"world_size": 4, "global_rank": 3, "local_rank": 1, "node_rank": 1, "main_address": "node1"}
    devices = (2, 2)
    malformed = "SLURM_PROCID"


class TestMPI(ClusterEnvironmentConformance):
    alias = "mpi"
    variables = {
        **{"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
        **{"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_NODE_RANK": "1", "PMIX_NAMESPACE": "job-1"},
        **{"OMPI_MCA_orte_hnp_uri": "1.0;tcp://127.0.0.1:4000", "PMIX_RANK": "1"},
    }
    expected = {"world_size": 2, "global_rank": 1, "local_rank": 1, "node_rank": 0}
    devices = (2, 1)
    malformed = "OMPI_COMM_WORLD_RANK"


class TestLSF(ClusterEnvironmentConformance):
    alias = "lsf"
    variables = {
        **{"LSB_JOBID": "7", "JSM_NAMESPACE_SIZE": "2", "JSM_NAMESPACE_RANK": "1"},
        **{"JSM_NAMESPACE_LOCAL_RANK": "1", "JSM_NAMESPACE_LOCAL_SIZE": "2"},
    }
    expected = {"world_size": 2, "global_rank": 1, "local_rank": 1, "node_rank": 0}
    devices = (2, 1)
    malformed = "JSM_NAMESPACE_RANK"

    def job_variables(self, folder):
        rank_file = folder / "ranks"
        rank_file.write_text(f"batch\n{socket.gethostname()}\n{socket.gethostname()}\n")
        return {**self.variables, "LSB_DJOB_RANKFILE": str(rank_file)}


class TestKubeflow(ClusterEnvironmentConformance):
    alias = "kubeflow"
    variables = {
        **{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_PORT": "tcp://10.0.0.1:443"},
        **{"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "2", "RANK": "1"},
    }
    expected = {
        **{"world_size": 2, "global_rank": 1, "local_rank": 0, "node_rank": 1},
        **{"main_address": "job-master-0", "main_port": 23456},
    }
    devices = (1, 2)
    malformed = "RANK"


class TestInPlace(LauncherConformance):
    alias = "in_place"
    num_processes = 1


@pytest.mark.slow
class TestSubprocess(LauncherConformance):
    alias = "subprocess"


@pytest.mark.slow
class TestSpawn(LauncherConformance):
    alias = "spawn"


class TestFork(LauncherConformance):
    alias = "fork"


@pytest.mark.slow
class TestForkserver(LauncherConformance):
    alias = "forkserver"


class TestCSV(LoggerConformance):
    alias = "csv"

    def read(self, logger, folder):
        with next(Path(folder).rglob("metrics.csv")).open(newline="") as file:
            rows = list(csv.DictReader(file))
        return [
            (int(row["step"]), name, float(text))
            for row in rows
            for name, text in row.items()
            if text and name not in ("step", "epoch")
        ]


class TestTensorBoard(LoggerConformance):
    alias = "tensorboard"
    heavy_modules = ("tensorboard",)
    requires = "tensorboard"

    def read(self, logger, folder):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        runs = {file.parent for file in folder.rglob("events.out.tfevents.*")}
        events = [EventAccumulator(str(run)).Reload() for run in runs]
        return [
            (at.step, name, at.value) for one in events for name in one.Tags()["scalars"] for at in one.Scalars(name)
        ]


class TestWandb(LoggerConformance):
    alias = "wandb"
    heavy_modules = ("wandb",)
    requires = "wandb"
    options = {"offline": True}
    own_process = True  # its threads live as long as their process, and a process with threads can't be forked


class TestMLFlow(LoggerConformance):
    alias = "mlflow"
    heavy_modules = ("mlflow",)
    requires = "mlflow"

    @pytest.fixture(autouse=True)
    def _local_store(self, monkeypatch):
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")

    def make_in(self, folder):
        return self.make(save_dir=str(folder), tracking_uri=(folder / "mlruns").as_uri())

    def read(self, logger, folder):
        runs = logger.experiment.search_runs(
            [experiment.experiment_id for experiment in logger.experiment.search_experiments()]
        )
        return [
            (one.step, name, one.value)
            for run in runs
            for name in run.data.metrics
            for one in logger.experiment.get_metric_history(run.info.run_id, name)
        ]
