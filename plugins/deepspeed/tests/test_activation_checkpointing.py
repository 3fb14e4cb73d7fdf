"""Activations that are computed twice: the same losses and weights, by DeepSpeed's function and by
torch's.
"""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from zero_ranks import end, loss_of, on_two_ranks, share_of

from core import ConfigurationError, Fabric
from core_deepspeed import DeepSpeedStrategy

NUM_BLOCKS, NUM_STEPS = 3, 8


class Block(nn.Module):
    """Draws random numbers, which have to be the same in the second computation."""

    def __init__(self):
        super().__init__()
        self.linear, self.num_calls = nn.Linear(6, 6), 0

    def forward(self, inputs):
        self.num_calls += 1
        return functional.dropout(self.linear(inputs).tanh(), 0.3, self.training)


def by_deepspeed(block, inputs):
    import deepspeed

    return deepspeed.checkpointing.checkpoint(block, inputs)


CALLS = {
    "plainly": lambda block, inputs: block(inputs),
    "by an argument": lambda block, inputs: block(inputs),
    "by DeepSpeed": by_deepspeed,
    "by torch": functools.partial(torch_checkpoint, use_reentrant=False),
    "by torch, in backward": functools.partial(torch_checkpoint, use_reentrant=True),
}


class Net(nn.Module):
    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 1)
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))
        self.way = way

    def forward(self, inputs):
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = hidden + CALLS[self.way](block, hidden)
        return self.last(hidden)


def train(rank, way):
    fabric, net, losses = rank.fabric(), Net(way), []
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=0.02))
    torch.manual_seed(rank.number)
    for step in range(NUM_STEPS):
        fabric.backward(loss := loss_of(model, share_of(rank, step)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    weights = end(fabric, net)
    return losses, weights, [block.num_calls for block in net.blocks]


@functools.cache
def trained_plainly(stage):
    return on_two_ranks(train, "plainly", stage=stage)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("by DeepSpeed", {}),
        ("by DeepSpeed", {"synchronize_checkpoint_boundary": True}),
        ("by torch", {}),
        ("by an argument", {}),
        ("by torch, in backward", {}),
    ],
)
def test_what_is_computed_twice_learns_the_same(stage, way, options):
    given = {"activation_checkpointing": "units"} if way == "by an argument" else {}
    results = on_two_ranks(train, way, stage=stage, trainer=given, **options)
    for (losses, weights, calls), (expected_losses, expected_weights, once) in zip(
        results, trained_plainly(stage), strict=True
    ):
        assert once == [NUM_STEPS] * NUM_BLOCKS
        assert calls == [2 * NUM_STEPS] * NUM_BLOCKS
        assert losses == expected_losses
        torch.testing.assert_close(weights, expected_weights, rtol=0, atol=0)


def test_two_ways_to_say_what_becomes_of_activations():
    with pytest.raises(
        ConfigurationError,
        match=r"the section activation_checkpointing of DeepSpeedStrategy both say",
    ):
        Fabric(
            strategy=DeepSpeedStrategy(synchronize_checkpoint_boundary=True),
            activation_checkpointing="units",
        )


def test_the_next_run_of_a_process_says_its_own():
    def look_at_the_process(rank):
        from deepspeed.runtime.activation_checkpointing import checkpointing

        fabric, model = rank.fabric(), nn.Linear(2, 1)
        fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        inside = checkpointing.SYNCHRONIZE
        fabric.teardown()
        return inside, checkpointing.SYNCHRONIZE

    assert (
        on_two_ranks(look_at_the_process, stage=2, synchronize_checkpoint_boundary=True)
        == [(True, False)] * 2
    )
