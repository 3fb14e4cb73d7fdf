"""Losses and weights under every way to start DDP equal those of one device, step by step.

The ways to train are the conformance kit's: `test_training_equals_one_device`, on ranks that exist already.
"""

import os
import sys
from pathlib import Path

import pytest
import torch

from core_testing import programs

PROGRAM = Path(__file__).with_name("equality_program.py")
CASES = ("plain", "shuffled", "fabric_accumulated")
# Relative to the largest weight. Averaging two halves rounds once more than one whole does.
TOLERANCE = 1e-10

pytestmark = pytest.mark.numbers

WAYS = {
    "ddp": ([sys.executable], "ddp"),
    "ddp_spawn": ([sys.executable], "ddp_spawn"),
    "ddp_fork": ([sys.executable], "ddp_fork"),
    "torchrun": ([*programs.TORCHRUN, "--standalone", "--nproc-per-node", "2"], "ddp"),
}


def run(command, out, strategy, devices):
    arguments = [*command, str(PROGRAM), str(out), "--strategy", strategy, "--devices", str(devices)]
    finished = programs.run(arguments, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=280)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return torch.load(out, weights_only=True)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return run([sys.executable], tmp_path_factory.mktemp("reference") / "out.pt", "single_device", 1)


@pytest.fixture(
    scope="module",
    params=[pytest.param(way, marks=pytest.mark.slow if way in ("ddp_spawn", "ddp_fork") else []) for way in WAYS],
)
def result(request, tmp_path_factory):
    command, strategy = WAYS[request.param]
    return run(command, tmp_path_factory.mktemp(request.param) / "out.pt", strategy, 2)


@pytest.mark.parametrize("case", CASES)
def test_losses_and_weights_equal_one_device(reference, result, case):
    losses, weights = result[case]
    expected_losses, expected_weights = reference[case]
    assert {value.dtype for value in weights.values()} == {torch.float64}
    scale = max(value.abs().max().item() for value in expected_weights.values())
    assert len(losses) == len(expected_losses) > 4
    assert losses == pytest.approx(expected_losses, rel=TOLERANCE * 10)
    for name, expected in expected_weights.items():
        assert (weights[name] - expected).abs().max().item() <= TOLERANCE * scale, name


def test_training_goes_somewhere(reference):
    for case, (losses, _) in reference.items():
        assert losses[-1] != losses[0], case
