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


@pytest.fixture
def assert_equals_one_device(run, tmp_path):
    """Train under a scheduler, and on one device, and compare losses and weights."""

    def check(*command, **variables):
        out, reference = tmp_path / "out.pt", tmp_path / "reference.pt"
        run(*command, sys.executable, TRAINING, out, "--strategy=ddp", "--devices=2", **variables)
        run(sys.executable, TRAINING, reference)
        results, expected = (torch.load(path, weights_only=True) for path in (out, reference))
        for case in CASES:
            assert results[case][0] == pytest.approx(expected[case][0], rel=1e-9)
            scale = max(value.abs().max() for value in expected[case][1].values())
            for name, value in expected[case][1].items():
                assert (results[case][1][name] - value).abs().max() <= 1e-10 * scale, (case, name)

    return check


def test_training_under_mpirun_equals_one_device(assert_equals_one_device, mpirun):
    assert_equals_one_device(*mpirun)


def test_training_under_srun_equals_one_device(assert_equals_one_device, slurm):
    assert_equals_one_device("srun", "--nodes=1", "--ntasks=2", "--overcommit", **slurm)


@pytest.fixture
def assert_hang_is_named(tmp_path):
    """Start a program under a scheduler whose rank 1 falls asleep: the run ends with a verdict on it."""

    def check(*command, **variables):
        lines = HANGING.read_text().splitlines()
        line = next(number for number, text in enumerate(lines, 1) if "time.sleep(600)" in text)
        done = subprocess.run(
            [*command, sys.executable, HANGING, "asleep", "ddp", command[0], "2", tmp_path],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode != 0, done.stdout + done.stderr  # srun's is the highest of its ranks
        assert re.search(rf"core\.HangError: .* Rank 1 is asleep at .*hanging\.py:{line} in hang", done.stderr)
        report = max(tmp_path.glob("core-hang-*.txt"))  # told first, and again at the end
        assert "rank 1 on " in report.read_text()

    return check


def test_a_hang_under_mpirun_is_named(assert_hang_is_named, mpirun):
    assert_hang_is_named(*mpirun)


def test_a_hang_under_srun_is_named(assert_hang_is_named, slurm):
    assert_hang_is_named("srun", "--nodes=1", "--ntasks=2", "--overcommit", **slurm)
