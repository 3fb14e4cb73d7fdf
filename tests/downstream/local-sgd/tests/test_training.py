"""A user names the strategy, and trains; the differences from one device."""

import pytest
import torch
from local_sgd import LocalSGDStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import ConfigurationError, Module, Trainer

BATCH_SIZE, NUM_RANKS = 4, 2
DATA = torch.randn(48, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def make_layers():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def make_optimizer(layers):
    return torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)


class Net(Module):
    def __init__(self):
        super().__init__()
        self.layers = make_layers()

    def training_step(self, batch, batch_idx):
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self):
        return make_optimizer(self.layers)


def trained(strategy, devices):
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", devices=devices, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = Net()
    trainer.fit(module, DataLoader(TensorDataset(DATA), batch_size=BATCH_SIZE * NUM_RANKS // devices))
    return module.layers.state_dict()


def by_hand(period):
    """The same, by two models in one process."""
    ranks = [make_layers() for _ in range(NUM_RANKS)]
    optimizers = [make_optimizer(layers) for layers in ranks]
    for step in range(len(DATA) // BATCH_SIZE // NUM_RANKS):
        for rank, (layers, optimizer) in enumerate(zip(ranks, optimizers, strict=True)):
            begin = (step * NUM_RANKS + rank) * BATCH_SIZE
            optimizer.zero_grad()
            layers(DATA[begin : begin + BATCH_SIZE]).square().mean().backward()
            optimizer.step()
        if (step + 1) % period == 0:
            average([list(layers.parameters()) for layers in ranks])
            average([[entry["momentum_buffer"] for entry in each.state.values()] for each in optimizers])
    average([list(layers.parameters()) for layers in ranks])
    return ranks[0].state_dict()


@torch.no_grad()
def average(ranks):
    for tensors in zip(*ranks, strict=True):
        mean = torch.stack(tensors).mean(0)
        for tensor in tensors:
            tensor.copy_(mean)


def fork(period):
    return LocalSGDStrategy(period=period, start_method="fork")


def test_averaging_after_each_step_equals_one_device():
    torch.testing.assert_close(trained(fork(1), NUM_RANKS), trained("single_device", 1))


def test_ranks_go_their_own_ways_between_two_averages():
    """As two models by hand do, and not as one device does."""
    found, one_device = trained(fork(4), NUM_RANKS), trained("single_device", 1)
    torch.testing.assert_close(found, by_hand(4))
    assert not torch.allclose(found["0.weight"], one_device["0.weight"], atol=1e-6)


def test_a_period_is_a_number_of_steps():
    with pytest.raises(ConfigurationError, match=r"period=0\): expected a number of steps from 1"):
        LocalSGDStrategy(period=0)
