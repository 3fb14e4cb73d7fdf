"""A run goes on from the middle of an epoch in another layout or under another strategy, and state
comes back.
"""

from dataclasses import replace
from functools import partial

import pytest
from language import ALONE, MixtureNet, Step, on, train

from core.checkpoint import DistributedCheckpointIO, TorchCheckpointIO
from core.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy
from core_testing.ranks import Backend
from core_testing.training import assert_equal_tensors

pytestmark = [pytest.mark.slow, pytest.mark.numbers]
_MIXTURE = partial(Step, MixtureNet)
_PARTS, _ONE_FILE = DistributedCheckpointIO, TorchCheckpointIO
_ONE = Backend(SingleDeviceStrategy, "cpu")
_DDP, _FSDP = (Backend(each, "cpu", 2, 2) for each in (DDPStrategy, FSDPStrategy))
_PIPELINES, _INTERLEAVED = on(data=2, pipeline=2), on(pipeline=2, schedule="Interleaved1F1B")
_STAGES_OF_LAYERS, _LAYERS = on(pipeline=2, tensor=2, schedule="1F1B"), on(shard=2, tensor=2)
_SHARDED_EXPERTS, _STAGES_OF_EXPERTS = (
    on(data=2, shard=2, expert=2),
    on(data=2, pipeline=2, schedule="1F1B", expert=2),
)


@pytest.mark.parametrize(
    ("source", "target", "make", "form"),
    [
        (_PIPELINES, _FSDP, Step, _PARTS),
        (_ONE, on(pipeline=2, schedule="1F1B"), Step, _PARTS),
        (_INTERLEAVED, on(data=2, pipeline=2, schedule="ZBVZeroBubble"), Step, _PARTS),
        (on(pipeline=2, schedule="ZBVZeroBubble"), _ONE, Step, _PARTS),
        (_FSDP, _INTERLEAVED, Step, _ONE_FILE),
        (on(pipeline=2, shard=2, schedule="ZBVZeroBubble"), on(shard=2, context=2), Step, _PARTS),
        (_STAGES_OF_LAYERS, _DDP, Step, _ONE_FILE),
        (_LAYERS, _FSDP, Step, _PARTS),
        (_FSDP, _LAYERS, Step, _ONE_FILE),
        (on(data=2, context=2, expert=2), on(data=2, shard=2, expert=4), _MIXTURE, _PARTS),
        (_SHARDED_EXPERTS, _DDP, _MIXTURE, _ONE_FILE),
        (on(pipeline=2, shard=2, expert=2), on(data=2, context=2, expert=2), _MIXTURE, _PARTS),
        (_STAGES_OF_EXPERTS, _DDP, _MIXTURE, _ONE_FILE),
    ],
)
def test_a_run_goes_on_as_on_one_device(source, target, make, form, tmp_path):
    source, target = (
        replace(one, strategy=partial(one.strategy, checkpoint_io=form()))
        for one in (source, target)
    )
    source.run(partial(train, make=make, path=tmp_path / "step.ckpt", max_steps=3))
    weights, _ = target.run(
        partial(train, make=make, ckpt_path=tmp_path / "step.ckpt", max_steps=5)
    )[0]
    expected, _ = ALONE.run(partial(train, make=make, max_steps=5))[0]
    assert_equal_tensors(weights, expected, 1e-12)
