"""A user names the strategy, and trains."""

import pytest
import torch
from flat_ddp import FlatDDP, FlatDDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, ConfigurationError, Module, Trainer


class Net(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def training_step(self, batch, batch_idx):
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class WrapperIsOurs(Callback):
    def on_train_start(self, trainer, module):
        assert isinstance(trainer.strategy.model, FlatDDP)


def trained(strategy, devices, **options):
    data = torch.randn(48, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", devices=devices, max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **options
    )  # fmt: skip
    module = Net()
    trainer.fit(module, DataLoader(TensorDataset(data), batch_size=8 // devices))
    return module.state_dict()


def test_training_in_two_processes_equals_that_on_one_device():
    options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}
    found = trained("flat_ddp_fork", 2, callbacks=WrapperIsOurs(), **options)
    torch.testing.assert_close(found, trained("single_device", 1, **options))


def test_the_users_parameters_lose_their_hooks():
    weight = nn.Linear(2, 2).weight
    wrapper = FlatDDP(nn.ParameterList([weight]), lambda gradient: gradient * 2)
    weight.sum().backward()
    wrapper.remove()
    weight.sum().backward()
    assert weight.grad.tolist() == [[3.0, 3.0], [3.0, 3.0]], "doubled once"


def test_options_of_another_wrapper_are_refused():
    with pytest.raises(ConfigurationError, match=r"FlatDDPStrategy has no option 'static_graph'.*use strategy='ddp'"):
        FlatDDPStrategy(static_graph=True)
