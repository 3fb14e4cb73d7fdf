"""A strategy's own CheckpointIO under core-lightning, whose Trainer has another default."""

import pytest

from core.checkpoint import DistributedCheckpointIO
from core.registry import STRATEGY_REGISTRY
from core.strategies import SingleDeviceStrategy
from core_lightning import LightningCheckpointIO


@pytest.fixture
def preset():
    STRATEGY_REGISTRY.register(
        "kept_in_parts", lambda: SingleDeviceStrategy(checkpoint_io=DistributedCheckpointIO())
    )
    yield "kept_in_parts"
    STRATEGY_REGISTRY.remove("kept_in_parts")


def test_a_strategys_own_is_kept_an_instances_and_a_presets(lit, preset):
    mine = DistributedCheckpointIO()
    assert (
        lit.make_trainer(strategy=SingleDeviceStrategy(checkpoint_io=mine)).strategy.checkpoint_io
        is mine
    )
    assert type(lit.make_trainer(strategy=preset).strategy.checkpoint_io) is DistributedCheckpointIO
    assert type(lit.make_trainer().strategy.checkpoint_io) is LightningCheckpointIO
