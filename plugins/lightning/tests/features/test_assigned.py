"""What programs assign to a trainer while it runs or between runs, and find in it afterwards."""

from operator import attrgetter

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

pytestmark = pytest.mark.numbers


@pytest.mark.parametrize("owner", ["trainer", "trainer.strategy"])
def test_optimizers(lit, owner):
    class Assigning(lit.Plain):
        def on_train_epoch_start(self):
            if self.current_epoch == 1:
                attrgetter(owner)(self).optimizers = [torch.optim.Adam(self.parameters(), 0.1)]

        def on_before_optimizer_step(self, optimizer):
            self.seen.append(type(optimizer).__name__.removeprefix("Lightning"))

    net = Assigning()
    lit.fit(net)
    assert (" ".join(net.seen), lit.total(net)) == ("SGD SGD SGD SGD Adam Adam Adam Adam", 3.3271)


def test_a_scheduler_with_its_interval(lit, installed):
    make = installed("lightning.pytorch.utilities.types").LRSchedulerConfig

    class Assigning(lit.pl.Callback):
        def on_train_epoch_start(self, trainer, module):
            if trainer.current_epoch == 1:
                config = make(StepLR(trainer.optimizers[0], 1, 0.1), interval="step", frequency=2)
                trainer.strategy.lr_scheduler_configs = [config]

    net = lit.scheduled()
    lit.fit(net, callbacks=[Assigning()])
    assert net.seen == [1.0] * 4 + [0.5, 0.5, 0.05, 0.05]


def test_after_fit_and_evaluation(lit):
    net = lit.scheduled()
    trainer = lit.fit(net)
    trainer.validate(net, lit.load(), verbose=False)
    trainer.predict(net, lit.load())
    assert (net.optimizers().param_groups[0]["lr"], net.lr_schedulers().last_epoch) == (0.25, 2)
    trainer.save_checkpoint("evaluated.ckpt")
    again = lit.fit(net, max_epochs=3, ckpt_path="evaluated.ckpt")
    assert (again.global_step, again.optimizers[0].param_groups[0]["lr"]) == (12, 0.125)


def test_attributes_before_a_run(lit):
    trainer = lit.make_trainer(max_epochs=1)
    attributes = {
        "gradient_clip_val": 0.5,
        "gradient_clip_algorithm": "value",
        "should_stop": True,
        "limit_val_batches": 1,
        "callbacks": [],
        "loggers": [],
        "accumulate_grad_batches": 2,
    }
    for name, value in attributes.items():
        setattr(trainer, name, value)
    assert {name: getattr(trainer, name) for name in attributes} == attributes
    trainer.fit(lit.Plain(), lit.load())
    assert trainer.global_step == 2


def test_attributes_within_a_run(lit):
    seen = []

    class Seen(lit.Plain):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            trainer, loop = self.trainer, self.trainer.fit_loop.epoch_loop
            seen.append((self.global_step, self.current_epoch, self.local_rank, self.device.type))
            seen.append((trainer.training, trainer.is_last_batch, trainer.num_training_batches))
            seen.append(
                (
                    loop.batch_idx,
                    loop.total_batch_idx,
                    trainer.fit_loop.total_batch_idx,
                    loop.global_step,
                )
            )
            seen.append(
                (trainer.estimated_stepping_batches, trainer.world_size, trainer.num_devices)
            )

    lit.fit(Seen(), max_epochs=2)
    assert seen[:4] == [(1, 0, 0, "cpu"), (True, False, 4), (0, 0, 0, 1), (8, 1, 1)]
    assert seen[-4:] == [(8, 1, 0, "cpu"), (True, True, 4), (3, 7, 7, 8), (8, 1, 1)]
