"""Real Open MPI and SLURM: opt-in, after tests/cluster/install.sh."""

import os
import shlex
import shutil
import sys

import pytest

pytestmark = pytest.mark.cluster


def test_mpirun_starts_the_script(run, script):
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed: tests/cluster/install.sh")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    lines = run("mpirun", *root, "--oversubscribe", "-n", "2", sys.executable, script, 2, 1)
    assert lines == [
        f"MPIEnvironment rank {rank} of 2 node 0 local {rank} restart 0 sum 3" for rank in (0, 1)
    ]


def test_srun_starts_the_script_on_one_node(run, script, slurm):
    lines = run(
        "srun", "--nodes=1", "--ntasks=2", "--overcommit", sys.executable, script, 2, 1, **slurm
    )
    assert lines == [
        f"SLURMEnvironment rank {rank} of 2 node 0 local {rank} restart 0 sum 3" for rank in (0, 1)
    ]


def test_srun_starts_the_script_on_two_nodes(run, script, slurm):
    # n1 and n2 are names of SLURM's only.
    command = (
        "srun",
        "--nodes=2",
        "--ntasks=2",
        "--ntasks-per-node=1",
        sys.executable,
        script,
        1,
        2,
    )
    lines = run(*command, **slurm, MASTER_ADDR="127.0.0.1")
    assert lines == [
        f"SLURMEnvironment rank {rank} of 2 node {rank} local 0 restart 0 sum 3" for rank in (0, 1)
    ]


def test_a_batch_script_without_srun_is_not_a_step(run, script, slurm, tmp_path):
    batch = tmp_path / "batch.sh"
    batch.write_text(f"#!/bin/sh\nexec {shlex.join([sys.executable, str(script), '1', '1'])}\n")
    run(
        "sbatch",
        "--wait",
        "--ntasks=2",
        "--overcommit",
        "--output",
        tmp_path / "log",
        batch,
        **slurm,
    )
    assert (
        tmp_path / "log"
    ).read_text() == "LocalEnvironment rank 0 of 1 node 0 local 0 restart 0 sum 0\n"


def test_a_step_smaller_than_its_allocation(run, script, slurm):
    inner = [
        "srun",
        "--ntasks=2",
        "--nodes=1",
        "--overcommit",
        "--overlap",
        sys.executable,
        script,
        2,
        1,
    ]
    lines = run("salloc", "--nodes=2", "--ntasks=4", "--overcommit", *inner, **slurm)
    assert lines == [
        f"SLURMEnvironment rank {rank} of 2 node 0 local {rank} restart 0 sum 3" for rank in (0, 1)
    ]
