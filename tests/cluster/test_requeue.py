"""A job on a real SLURM that is warned, saves, is requeued, and goes on: opt-in, after tests/cluster/install.sh."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1000)]
PROGRAM = Path(__file__).parents[1] / "trainer" / "signals" / "interruption_program.py"
# SLURM lets a requeued job wait for two minutes, and a busy machine starts it slowly.
LIMIT_S = 420


def await_file(path, job, call):
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < deadline, call("scontrol", "show", "job", job)
        time.sleep(0.2)


def test_a_warned_job_runs_again_and_goes_on(slurm, tmp_path):
    def call(*command):
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | slurm
        return subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, check=True).stdout

    batch = tmp_path / "batch.sh"
    command = shlex.join([sys.executable, str(PROGRAM), str(tmp_path), "ddp", "requeue"])
    batch.write_text(f"#!/bin/sh\nexec srun --overcommit {command}\n")
    options = ("--requeue", "--nodes=1", "--ntasks=2", "--overcommit", "--open-mode=append")
    job = call("sbatch", "--parsable", *options, "--output", tmp_path / "log", batch).strip()
    for rank in (0, 1):
        await_file(tmp_path / f"pid-{rank}", job, call)
    call("scancel", "--signal=USR1", job)
    await_file(tmp_path / f"requeue-{job}.ckpt", job, call)
    deadline = time.monotonic() + LIMIT_S
    while "Restarts=1" not in call("scontrol", "show", "job", job):
        assert time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.2)
    steps = {line.rpartition(" ")[2] for rank in (0, 1) for line in events(tmp_path, rank) if "after step" in line[9:]}
    for rank in (0, 1):
        (tmp_path / f"pid-{rank}").unlink()
    for rank in (0, 1):
        await_file(tmp_path / f"pid-{rank}", job, call)
    call("scancel", job)
    stopped = {line for rank in (0, 1) for line in events(tmp_path, rank) if line.startswith("Interrupted after step")}
    step = next(iter(stopped)).rpartition(" ")[2]
    assert step in steps
    assert all(f"begins after step {step}" in events(tmp_path, rank) for rank in (0, 1)), (tmp_path / "log").read_text()


def events(folder, rank):
    return (folder / f"events-{rank}").read_text().splitlines()
