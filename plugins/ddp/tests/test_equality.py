"""Losses and weights are those of one device where a script starts its ranks, and where torchrun does."""

import os
import sys
from pathlib import Path

import pytest
import torch
from equality_program import NAMES

from core_testing import programs
from core_testing.cases import CASES
from core_testing.ranks import end_kept_ranks
from core_testing.training import reference

PROGRAM = Path(__file__).with_name("equality_program.py")
LAUNCHERS = {"script": [sys.executable], "torchrun": [*programs.TORCHRUN, "--standalone", "--nproc-per-node", "2"]}


@pytest.fixture(scope="module", params=LAUNCHERS)
def runs(request, tmp_path_factory):
    out = tmp_path_factory.mktemp(request.param) / "out.pt"
    command = [*LAUNCHERS[request.param], PROGRAM, out, "--strategy", "ddp", "--devices", "2"]
    done = programs.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=280)
    assert done.returncode == 0, done.stderr
    yield torch.load(out, weights_only=True)
    end_kept_ranks()


@pytest.mark.numbers
@pytest.mark.parametrize("case", [case for case in CASES if case.name in NAMES], ids=str)
def test_losses_and_weights_equal_one_device(runs, case):
    (losses, weights), expected = runs[case.name], reference(case, "cpu", 2)
    assert losses == pytest.approx(expected.losses, rel=1e-9)
    torch.testing.assert_close(weights, expected.weights, rtol=1e-10, atol=1e-10)
