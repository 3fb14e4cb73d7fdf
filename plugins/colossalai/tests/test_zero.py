"""The conformance kit on `low_level_zero`, of which the accelerator is a test double: see
`accelerator_double.py`.
"""

import json
import os
import sys
from pathlib import Path

import accelerator_double
import pytest
import torch

from core import Capability
from core_colossalai import conformance
from core_testing import StrategyConformance, programs

assert conformance.TestColossalAI  # Colossal-AI is imported there, once for all ranks

accelerator_double.register()
pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent / "zero_program.py"


class ZeroConformance(StrategyConformance):
    """In float32, which is rounded otherwise where gradients are added in another order: masters
    have no float64.
    """

    ground = "simulated"
    dtype = torch.float32
    tolerance = 2e-6
    precisions = ("32-true", "bf16-mixed")
    timeout_s = 120
    expected_capabilities = (
        Capability.COLLECTIVES
        | Capability.JOINT_SETUP
        | Capability.OWNS_GRADIENTS
        | Capability.MANUAL_OPTIMIZATION
        | Capability.INFERENCE_MODE
        | Capability.BIT_EXACT_RESUME
        | Capability.WEIGHTED_LOSSES
    )


class TestZero1(ZeroConformance):
    """The optimizer's state in parts."""

    alias = "zero_1_on_a_double"


class TestZero2(ZeroConformance):
    """Gradients in parts too."""

    alias = "zero_2_on_a_double"


def run(folder, *arguments):
    command = [sys.executable, PROGRAM, *arguments]
    return programs.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=folder, timeout=280)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The results of `zero_program.py` in two processes."""
    done = run(tmp_path_factory.mktemp("run"))
    assert done.returncode == 0, done.stderr
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def test_masters_are_the_users_weights(found):
    held, rounded = found["masters"]
    assert held == 0 < rounded


def test_float16_scales_the_loss_and_leaves_out_what_overflows(found):
    first, last, scale, restored = found["float16"]
    assert last < first / 2
    assert 1 < scale < 2.0**30
    assert restored == 8


def test_clipping_is_for_one_step(found):
    clipped, unclipped = found["clipped"]
    assert clipped < 2e-3 < 1 < unclipped


def test_its_own_layout_keeps_all_but_masters(found):
    """In float32 to the bit, with frozen weights and without any state of the optimizer, too; in 16
    bits rounded.
    """
    adamw, rounded, sgd = found["native"]
    assert adamw == sgd == [[0.0, 0.0], [0.0, 0.0]]
    for weights, state in rounded:
        assert 0 < weights < 1e-2
        assert state == 0


def test_a_layer_that_one_rank_leaves_out_is_named(tmp_path):
    done = run(tmp_path, "left_out")
    assert done.returncode != 0
    assert "does not depend on 'first.weight', 'first.bias' on rank 1" in done.stderr
