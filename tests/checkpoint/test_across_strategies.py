"""What one strategy has saved, another one goes on from, with another number of processes."""

import os
import sys
from pathlib import Path

import pytest

from core_testing import programs
from support.printed import lines_of

PROGRAM = Path(__file__).with_name("exchange_program.py")


def run(strategy, path, *, goes_on):
    command = [sys.executable, PROGRAM, strategy, path, "yes" if goes_on else "no"]
    done = programs.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=120)
    assert done.returncode == 0, done.stderr
    (line,) = lines_of(done.stdout)
    return [float(word) for word in line.split()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module", params=["single_device", "ddp"])
def checkpoint(request, folder):
    path = folder / f"{request.param}.ckpt"
    run(request.param, path, goes_on=False)
    return path


@pytest.fixture(scope="module")
def expected(folder):
    path = folder / "reference.ckpt"
    run("single_device", path, goes_on=False)
    return run("single_device", path, goes_on=True)


@pytest.mark.parametrize("reader", ["single_device", "ddp_fork"])
def test_a_run_goes_on_under_another_strategy(checkpoint, expected, reader):
    steps, learning_rate, *sums = run(reader, checkpoint, goes_on=True)
    assert (steps, learning_rate) == (4, 0.1 / 2**4)
    assert sums == pytest.approx(expected[2:], abs=1e-10)
