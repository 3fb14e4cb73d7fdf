"""A strategy's own CheckpointIO under core-lightning, whose Trainer has another default."""

import pytest

from core.checkpoint import DistributedCheckpointIO
from core.registry import STRATEGY_REGISTRY
from core.strategies import SingleDeviceStrategy
from core_lightning import LightningCheckpointIO


@pytest.fixture
def preset():
    STRATEGY_REGISTRY.register("kept_in_parts", lambda: SingleDeviceStrategy(checkpoint_io=DistributedCheckpointIO()))
    yield "kept_in_parts"
    STRATEGY_REGISTRY.remove("kept_in_parts")


def test_a_strategys_own_is_kept_an_instances_and_a_presets(installed, preset):
    make_trainer, quiet = installed("lightning").Trainer, {"logger": False, "accelerator": "cpu"}
    mine = DistributedCheckpointIO()
    assert make_trainer(strategy=SingleDeviceStrategy(checkpoint_io=mine), **quiet).strategy.checkpoint_io is mine
    assert type(make_trainer(strategy=preset, **quiet).strategy.checkpoint_io) is DistributedCheckpointIO
    assert type(make_trainer(**quiet).strategy.checkpoint_io) is LightningCheckpointIO
