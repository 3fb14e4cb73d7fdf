"""Real Open MPI and SLURM: opt-in, after tests/cluster/install.sh."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from core_testing.waiting import slowness

pytestmark = pytest.mark.cluster

TRAINING = Path(__file__).parents[2] / "plugins" / "ddp" / "tests" / "equality_program.py"
HANGING = Path(__file__).parents[1] / "watch" / "hanging.py"
CASES = ("plain", "shuffled", "fabric_accumulated")


@pytest.fixture
def mpirun():
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed: tests/cluster/install.sh")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["mpirun", *root, "--oversubscribe", "-n", "2"]


def test_mpirun_starts_the_script(run, script, mpirun):
    lines = run(*mpirun, sys.executable, script, 2, 1)
    assert lines == [f"MPIEnvironment rank {rank} of 2 node 0 local {rank} restart 0 sum 3" for rank in (0, 1)]


def test_srun_starts_the_script_on_one_node(run, script, slurm):
    lines = run("srun", "--nodes=1", "--ntasks=2", "--overcommit", sys.executable, script, 2, 1, **slurm)
    assert lines == [f"SLURMEnvironment rank {rank} of 2 node 0 local {rank} restart 0 sum 3" for rank in (0, 1)]


def test_srun_starts_the_script_on_two_nodes(run, script, slurm):
    # n1 and n2 are names of SLURM's only.
    command = ("srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", sys.executable, script, 1, 2)
    lines = run(*command, **slurm, MASTER_ADDR="127.0.0.1")
    assert lines == [f"SLURMEnvironment rank {rank} of 2 node {rank} local 0 restart 0 sum 3" for rank in (0, 1)]


def test_a_batch_script_without_srun_is_not_a_step(run, script, slurm, tmp_path):
    batch = tmp_path / "batch.sh"
    batch.write_text(f"#!/bin/sh\nexec {shlex.join([sys.executable, str(script), '1', '1'])}\n")
    run("sbatch", "--wait", "--ntasks=2", "--overcommit", "--output", tmp_path / "log", batch, **slurm)
    assert (tmp_path / "log").read_text() == "LocalEnvironment rank 0 of 1 node 0 local 0 restart 0 sum 0\n"


def test_a_step_smaller_than_its_allocation(run, script, slurm):
    inner = ["srun", "--ntasks=2", "--nodes=1", "--overcommit", "--overlap", sys.executable, script, 2, 1]
    lines = run("salloc", "--nodes=2", "--ntasks=4", "--overcommit", *inner, **slurm)
    assert lines == [f"SLURMEnvironment rank {rank} of 2 node 0 local {rank} restart 0 sum 3" for rank in (0, 1)]


def test_training_under_srun_equals_one_device(run, tmp_path, slurm):
    out, reference = tmp_path / "out.pt", tmp_path / "reference.pt"
    options = ("--nodes=1", "--ntasks=2", "--overcommit")
    run("srun", *options, sys.executable, TRAINING, out, "--strategy=ddp", "--devices=2", **slurm)
    run(sys.executable, TRAINING, reference)
    results, expected = (torch.load(path, weights_only=True) for path in (out, reference))
    for case in CASES:
        assert results[case][0] == pytest.approx(expected[case][0], rel=1e-9)
        torch.testing.assert_close(results[case][1], expected[case][1], rtol=0, atol=1e-9)


def test_a_hang_under_srun_is_named(tmp_path, slurm):
    """Rank 1 falls asleep: the run ends with a verdict on it."""
    lines = HANGING.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "time.sleep(600)" in text)
    srun = ("srun", "--nodes=1", "--ntasks=2", "--overcommit", sys.executable)
    done = subprocess.run(
        [*srun, HANGING, "asleep", "ddp", "srun", "2", tmp_path],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | slurm,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150 * slowness(),
    )
    assert done.returncode != 0, done.stdout + done.stderr  # srun's is the highest of its ranks
    assert re.search(rf"core\.HangError: .* Rank 1 is asleep at .*hanging\.py:{line} in hang", done.stderr)
    report = max(tmp_path.glob("core-hang-*.txt"))  # told first, and again at the end
    assert "rank 1 on " in report.read_text()
