"""A strategy's own CheckpointIO under core-lightning, whose Trainer has another default."""

from core.checkpoint import DistributedCheckpointIO
from core.registry import STRATEGY_REGISTRY
from core.strategies import SingleDeviceStrategy
from core_lightning import LightningCheckpointIO


def test_a_strategys_own_is_kept_an_instances_and_a_presets(lit, request):
    STRATEGY_REGISTRY.register(
        "kept_in_parts", lambda: SingleDeviceStrategy(checkpoint_io=DistributedCheckpointIO())
    )
    request.addfinalizer(lambda: STRATEGY_REGISTRY.remove("kept_in_parts"))
    mine = DistributedCheckpointIO()
    assert (
        lit.make_trainer(strategy=SingleDeviceStrategy(checkpoint_io=mine)).strategy.checkpoint_io
        is mine
    )
    assert (
        type(lit.make_trainer(strategy="kept_in_parts").strategy.checkpoint_io)
        is DistributedCheckpointIO
    )
    assert type(lit.make_trainer().strategy.checkpoint_io) is LightningCheckpointIO
