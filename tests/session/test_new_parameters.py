"""A layer that comes into a module after it was set up: no rank trains its own without a word."""

import pytest
import torch

from core import Callback, ConfigurationError, Module, Trainer
from core_testing import in_one_process

QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


class Net(Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)

    def training_step(self, batch):
        return self.head(self.body(batch)).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Replace(Callback):
    def __init__(self, hook):
        setattr(self, hook, self.replace)

    def replace(self, trainer, module, *_):
        if trainer.current_epoch == 1:
            module.head = torch.nn.Linear(2, 1)
            trainer.strategy.optimizers[0].add_param_group({"params": [*module.head.parameters()]})


def train(strategy, hook):
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_epochs=2,
        callbacks=[Replace(hook)],
        num_sanity_val_steps=0,
        **QUIET,
    )
    with pytest.raises(ConfigurationError) as caught:
        trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=1))
    return [str(caught.value)]


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
    found = in_one_process(train, strategy, hook)
    assert len(found) == 2
    assert all("'head." in each and "has come into the module after it was set up" in each for (each,) in found)


def test_one_process_trains_it():
    module = Net()
    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=2, callbacks=[Replace("on_train_epoch_start")], **QUIET)
    trainer.fit(module, [torch.ones(1, 2)])
    assert module.head.weight.grad is None  # it was in the optimizer, which has set it to None
