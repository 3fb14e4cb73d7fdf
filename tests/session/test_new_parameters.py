"""A layer that comes into a module after it was set up: no rank trains its own without a word."""

import pytest
import torch

from core import ConfigurationError, Module
from core.callbacks import LambdaCallback
from core_testing import in_one_process
from support.small_nets import fit, quiet_trainer


class Net(Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)

    def training_step(self, batch):
        return self.head(self.body(batch)).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def replace(trainer, module, *_):
    if trainer.current_epoch == 1:
        module.head = torch.nn.Linear(2, 1)
        trainer.strategy.optimizers[0].add_param_group({"params": [*module.head.parameters()]})


@pytest.mark.parametrize(
    ("strategy", "hook"),
    [
        ("ddp", "on_train_batch_start"),
        ("fsdp", "on_train_epoch_start"),
        ("model_parallel", "on_train_epoch_start"),
        ("parallel", "on_train_epoch_start"),
        ("ddp_sharded", "on_train_epoch_start"),
    ],
)
def test_a_layer_that_was_replaced_is_refused_at_its_first_gradient(strategy, hook):
    def train():
        callback = LambdaCallback(**{hook: replace})
        trainer = quiet_trainer(devices=2, strategy=strategy, max_epochs=2, callbacks=callback)
        with pytest.raises(ConfigurationError) as caught:
            trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=1))
        return str(caught.value)

    found = in_one_process(train)
    assert [
        "'head." in each and "has come into the module after it was set up" in each
        for each in found
    ] == [True] * 2


def test_one_process_trains_it():
    module = Net()
    fit(
        module,
        [torch.ones(1, 2)],
        max_epochs=2,
        callbacks=LambdaCallback(on_train_epoch_start=replace),
    )
    assert module.head.weight.grad is None  # it was in the optimizer, which has set it to None
