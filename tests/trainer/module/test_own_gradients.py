"""Gradients by hand under a strategy that doesn't have them whole before the step."""

import warnings

import pytest
import torch

from core import Callback, Capability, Module, Trainer
from core.accelerators import CPUAccelerator
from core.strategies import SingleDeviceStrategy

QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


class Parted(SingleDeviceStrategy):
    @property
    def capabilities(self):
        return super().capabilities | Capability.OWNS_GRADIENTS


class Net(Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class ByHand(Net):
    def on_before_optimizer_step(self, optimizer):
        torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)


class Norm(Callback):
    def on_before_optimizer_step(self, trainer, module, optimizer):
        pass


def fit(strategy, module, *callbacks):
    trainer = Trainer(strategy=strategy, max_epochs=2, callbacks=list(callbacks), **QUIET)
    trainer.fit(module, [torch.ones(1, 2)] * 3)


@pytest.mark.parametrize(("module", "callbacks", "name"), [(ByHand, (), "ByHand"), (Net, (Norm(),), "Norm")])
def test_a_hook_that_may_read_gradients_is_warned_of_once(module, callbacks, name):
    strategy = Parted(accelerator=CPUAccelerator())
    with pytest.warns(
        UserWarning, match=rf"{name} has the hook on_before_optimizer_step, and under Parted gradients aren't whole"
    ) as caught:
        fit(strategy, module(), *callbacks)
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize(("strategy", "module"), [(SingleDeviceStrategy, ByHand), (Parted, Net)])
def test_others_are_not(strategy, module):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(strategy(accelerator=CPUAccelerator()), module())
