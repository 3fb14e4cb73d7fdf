"""A run in which others make steps too: `optimizer_step` answers with more than one."""

import pytest
import torch

from core import Capability
from core.strategies import SingleDeviceStrategy
from support.small_nets import Net, fit


@pytest.mark.parametrize("steps", ["by the loop", "by a hook", "by hand"])
def test_global_step_follows_the_run_and_may_pass_the_limit(steps):
    class Own(Net):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            optimizer.step(closure=optimizer_closure)

    class Manual(Net):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()

    class InThrees(SingleDeviceStrategy):
        """Two others make a step for each of ours."""

        @property
        def capabilities(self):
            return super().capabilities | Capability.ELASTIC

        def optimizer_step(self, optimizer, closure=None):
            return 3 * super().optimizer_step(optimizer, closure)

    kind = {"by the loop": Net, "by a hook": Own, "by hand": Manual}[steps]
    trainer = fit(kind(), [torch.ones(1, 4)] * 8, strategy=InThrees(), max_steps=4, max_epochs=-1)
    assert (trainer.global_step, trainer.progress.total_batches) == (6, 2)
