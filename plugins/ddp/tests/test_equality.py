"""Losses and weights under every way to start DDP equal those of one device, step by step."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).with_name("equality_program.py")
CASES = [
    *("plain", "sgd_fp32", "shuffled", "accumulated", "clipped", "clipped_by_value", "frozen"),
    *("fabric", "fabric_accumulated", "fabric_shuffled"),
]
# Every fit of ddp_spawn starts two interpreters.
FEW_CASES = ("plain", "shuffled", "fabric_accumulated")
# Relative to the largest weight. Averaging two halves rounds once more than one whole does.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-6}

WAYS = {
    "ddp": ([sys.executable], "ddp"),
    "ddp_spawn": ([sys.executable], "ddp_spawn"),
    "ddp_fork": ([sys.executable], "ddp_fork"),
    "torchrun": ([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"], "ddp"),
}


def run(command, out, strategy, devices):
    cases = FEW_CASES if strategy == "ddp_spawn" else CASES
    arguments = [*command, str(PROGRAM), str(out), "--strategy", strategy, "--devices", str(devices), "--cases", *cases]
    finished = subprocess.run(
        arguments, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=280
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return torch.load(out, weights_only=True)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return run([sys.executable], tmp_path_factory.mktemp("reference") / "out.pt", "single_device", 1)


@pytest.fixture(scope="module", params=WAYS)
def result(request, tmp_path_factory):
    command, strategy = WAYS[request.param]
    return run(command, tmp_path_factory.mktemp(request.param) / "out.pt", strategy, 2)


@pytest.mark.parametrize("case", CASES)
def test_losses_and_weights_equal_one_device(reference, result, case):
    if case not in result:
        assert case not in FEW_CASES
        pytest.skip("ddp_spawn trains a few of the cases")
    losses, weights = result[case]
    expected_losses, expected_weights = reference[case]
    dtype = next(iter(expected_weights.values())).dtype
    scale = max(value.abs().max().item() for value in expected_weights.values())
    assert len(losses) == len(expected_losses) > 4
    assert losses == pytest.approx(expected_losses, rel=TOLERANCE[dtype] * 10)
    for name, expected in expected_weights.items():
        assert (weights[name] - expected).abs().max().item() <= TOLERANCE[dtype] * scale, name


def test_training_goes_somewhere(reference):
    for case, (losses, _) in reference.items():
        assert losses[-1] != losses[0], case
