"""A run in which others make steps too: `optimizer_step` answers with more than one."""

import torch
from torch import nn

from core import Capability, Module, Trainer
from core.strategies import SingleDeviceStrategy

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


class InThrees(SingleDeviceStrategy):
    """Two others make a step for each of ours."""

    @property
    def capabilities(self):
        return super().capabilities | Capability.ELASTIC

    def optimizer_step(self, optimizer, closure=None):
        return 3 * super().optimizer_step(optimizer, closure)


class Net(Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Own(Net):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer.step(closure=optimizer_closure)


class Manual(Net):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


def test_global_step_follows_the_run_and_may_pass_the_limit():
    for net in (Net(), Own(), Manual()):
        trainer = Trainer(strategy=InThrees(), accelerator="cpu", max_steps=4, max_epochs=-1, **QUIET)
        trainer.fit(net, [torch.ones(1, 2)] * 8)
        assert (trainer.global_step, trainer.progress.total_batches) == (6, 2), type(net).__name__
