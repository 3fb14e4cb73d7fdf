"""The pods of Kubeflow's TrainJob: processes of this machine, with the variables that Kubeflow
Trainer sets.
"""

import os
import signal
import subprocess
import sys

import pytest

from core.cluster import reserve_port
from core.display.lost_connection import is_lost_connection
from core_testing.waiting import slowness

PROGRAM = r"""
import os, signal, sys

import core

fabric = core.Fabric(strategy="ddp", accelerator="cpu", devices=2, num_nodes="auto")
fabric.launch()
environment = type(fabric.strategy.cluster_environment).__name__
place = f"rank {fabric.global_rank} of {fabric.world_size} node {fabric.node_rank} local {fabric.local_rank}"
os.write(1, f"{environment} {place}\n".encode())  # at once: two ranks of a pod write into one pipe
fabric.barrier()
if sys.argv[1] == "kill" and fabric.global_rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
fabric.barrier()
"""


def in_pods(folder, how, command):
    """A command run in each of two pods: exit codes, lines, errors."""
    (folder / "train.py").write_text(PROGRAM)
    variables = os.environ | {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "127.0.0.1",
    }

    def start(number):
        environment = variables | {
            "PET_NODE_RANK": str(number),
            "PET_MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
        }
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*command, folder / "train.py", how],
            env=environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )

    port = str(reserve_port(start))
    pods = [start(number) for number in range(2)]
    told = [pod.communicate(timeout=200 * slowness()) for pod in pods]
    return (
        [pod.returncode for pod in pods],
        sorted("".join(out for out, _ in told).splitlines()),
        told,
    )


def lines_of(environment):
    return [
        f"{environment} rank {rank} of 4 node {rank // 2} local {rank % 2}" for rank in range(4)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "environment"),
    [
        ([sys.executable], "KubeflowEnvironment"),
        ([sys.executable, "-m", "torch.distributed.run"], "TorchElasticEnvironment"),
    ],
    ids=["python", "torchrun"],
)
def test_a_program_finds_its_ranks(tmp_path, command, environment):
    codes, lines, told = in_pods(tmp_path, "end", command)
    assert codes == [0, 0], told
    assert lines == lines_of(environment)


@pytest.mark.slow
def test_a_killed_rank_ends_both_pods(tmp_path):
    codes, lines, told = in_pods(tmp_path, "kill", [sys.executable])
    assert 0 not in codes
    assert lines == lines_of("KubeflowEnvironment")
    # By whichever is first: the launcher that loses the process, or rank 0 that loses the
    # connection, as gloo says it.
    errors = told[0][1]
    named = f"Rank 1 was killed by {signal.SIGKILL.name}", "Ranks 1 failed to pass monitoredBarrier"
    assert any(text in errors for text in named) or is_lost_connection(RuntimeError(errors)), told
