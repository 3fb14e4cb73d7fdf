"""Activations that are computed twice: the same losses and weights, by DeepSpeed's function and by torch's."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.data import DataLoader, TensorDataset

from core import ConfigurationError, Fabric, Module
from core_deepspeed import DeepSpeedStrategy
from core_testing import Backend

CUT = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
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


class Net(Module):
    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 1)
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))
        self.way, self.losses = way, []

    def on_train_start(self):
        torch.manual_seed(self.global_rank)

    def training_step(self, batch):
        hidden = self.first(batch[0])
        for block in self.blocks:
            hidden = hidden + CALLS[self.way](block, hidden)
        loss = functional.mse_loss(self.last(hidden), batch[0].sum(1, keepdim=True).sin())
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def train(rank, way):
    module = Net(way)
    data = torch.randn(8 * NUM_STEPS, 5, generator=torch.Generator().manual_seed(1))
    arguments = {"activation_checkpointing": "units"} if way == "by an argument" else {}
    rank.trainer(max_epochs=1, **arguments).fit(module, DataLoader(TensorDataset(data), batch_size=4))
    return module.losses, module.state_dict(), [block.num_calls for block in module.blocks]


def on_two_ranks(function, *args, stage, **options):
    make = functools.partial(DeepSpeedStrategy, stage, config=CUT if stage == 3 else None, **options)
    return Backend(make, num_processes=2, data_parallel_size=2).run(function, *args)


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
    results = on_two_ranks(train, way, stage=stage, **options)
    for (losses, weights, calls), (expected_losses, expected_weights, once) in zip(
        results, trained_plainly(stage), strict=True
    ):
        assert once == [NUM_STEPS] * NUM_BLOCKS
        assert calls == [2 * NUM_STEPS] * NUM_BLOCKS
        assert losses == expected_losses
        for name, value in expected_weights.items():
            assert torch.equal(weights[name], value), name


def test_two_ways_to_say_what_becomes_of_activations():
    with pytest.raises(ConfigurationError, match=r"the section activation_checkpointing of DeepSpeedStrategy both say"):
        Fabric(strategy=DeepSpeedStrategy(synchronize_checkpoint_boundary=True), activation_checkpointing="units")


def look_at_the_process(rank):
    from deepspeed.runtime.activation_checkpointing import checkpointing

    fabric, model = rank.fabric(), nn.Linear(2, 1)
    fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    inside = checkpointing.SYNCHRONIZE
    fabric.teardown()
    return inside, checkpointing.SYNCHRONIZE


def test_the_next_run_of_a_process_says_its_own():
    assert on_two_ranks(look_at_the_process, stage=2, synchronize_checkpoint_boundary=True) == [(True, False)] * 2
