"""Losses and whole weights of 20 steps under every stage equal those of one device."""

import functools
from dataclasses import replace

import pytest
import torch
from zero_ranks import CUT

from core_deepspeed import DeepSpeedStrategy
from support.sharded_training import CASES, NUM_STEPS, train

# Relative to the largest loss or weight. Gradients are added in another order, in float32, and Adam divides by them.
TOLERANCE = 1e-5
CHOSEN = ["sgd_fp32", "clipped", "accumulated", "tied", "frozen", "fabric", "fabric_accumulated", "meta"]
IN_FLOAT32 = {name: replace(CASES[name], dtype=torch.float32) for name in CHOSEN}


@functools.cache
def reference(case):
    return train(IN_FLOAT32[case])


# The stage with most parts has every case. The others have those whose gradients are reduced, counted or stored in
# another way: a norm over ranks, a sum over batches, a weight with two places.
PAIRS = [(3, case) for case in CHOSEN]
PAIRS += [(stage, case) for stage in (0, 1, 2) for case in ("clipped", "accumulated", "tied")]


@pytest.mark.parametrize(("stage", "case"), PAIRS)
def test_losses_and_weights_equal_one_device(stage, case):
    strategy = DeepSpeedStrategy(stage, start_method="fork", config=CUT if stage == 3 else None)
    losses, weights = train(IN_FLOAT32[case], strategy, devices=2)
    expected_losses, expected_weights = reference(case)
    scale = max(value.abs().max().item() for value in expected_weights.values() if value.is_floating_point())
    assert len(losses) == NUM_STEPS
    assert losses == pytest.approx(expected_losses, abs=TOLERANCE * max(expected_losses))
    assert weights.keys() == expected_weights.keys()
    for name, expected in expected_weights.items():
        assert (weights[name] - expected).abs().max().item() <= TOLERANCE * scale, name
