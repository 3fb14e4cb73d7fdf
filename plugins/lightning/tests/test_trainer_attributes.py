"""Attributes of the Trainer that programs read and set, with what they are under Lightning 2.6.6."""

import math

import pytest
import torch
from torch.utils.data import DataLoader

import core

pytestmark = pytest.mark.filterwarnings("ignore:core trains in Lightning's place")

LOADER = DataLoader(torch.arange(30.0).reshape(10, 3), batch_size=4)
QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)


@pytest.fixture
def pl(installed):
    return installed("lightning.pytorch")


def make_net(pl):
    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen, self.validated = torch.nn.Linear(3, 1), [], []

        def training_step(self, batch, batch_idx):
            loop, trainer = self.trainer.fit_loop, self.trainer
            epochs = loop.epoch_progress.current
            self.seen.append(
                (epochs.ready, epochs.completed, loop.epoch_loop.batch_progress.current.processed, loop.max_epochs)
            )
            self.states = (trainer.state.fn, trainer.state.stage, trainer.state.finished, trainer.enable_validation)
            return self.layer(batch).square().mean()

        def on_train_epoch_end(self):
            loop = self.trainer.fit_loop
            self.ended = (
                loop.epoch_progress.current.processed,
                loop.epoch_loop.batch_progress.total.processed,
                loop.epoch_loop.global_step,
                loop.epoch_loop.val_loop.max_batches,
            )

        def validation_step(self, batch, batch_idx):
            self.validated.append(self.trainer.state.stage)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Net()


def test_states_are_lightnings(pl, installed):
    states, net = installed("lightning.pytorch.trainer.states"), make_net(pl)
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", **QUIET)
    assert trainer.state == states.TrainerState()
    trainer.fit(net, LOADER, LOADER)
    assert net.states == (states.TrainerFn.FITTING, states.RunningStage.TRAINING, False, True)
    assert trainer.state == states.TrainerState(states.TrainerStatus.FINISHED, states.TrainerFn.FITTING)
    assert (trainer.state.finished, trainer.state.stopped) == (True, True)
    trainer.validate(net, LOADER, verbose=False)
    assert trainer.state.fn is states.TrainerFn.VALIDATING


def test_options_are_lightnings_and_can_be_set_between_stages(pl):
    net, trainer = make_net(pl), pl.Trainer(max_epochs=1, accelerator="cpu", gradient_clip_val=0.5, **QUIET)
    limits = [f"limit_{stage}_batches" for stage in ("train", "val", "test", "predict")]
    assert [getattr(trainer, name) for name in (*limits, "val_check_interval")] == [1.0] * 5
    assert (trainer.check_val_every_n_epoch, trainer.log_every_n_steps, trainer.num_sanity_val_steps) == (1, 50, 2)
    assert (trainer.gradient_clip_val, trainer.logger, trainer.barebones) == (0.5, None, False)
    trainer.limit_train_batches, trainer.limit_val_batches = 2, 1
    trainer.num_sanity_val_steps = trainer.log_every_n_steps = 1
    trainer.check_val_every_n_epoch, trainer.gradient_clip_val = 2, 0.01
    before = net.layer.weight.detach().clone()
    trainer.fit(net, LOADER, LOADER)
    assert (trainer.global_step, net.validated) == (2, ["sanity_check"])
    assert 0 < float((net.layer.weight.detach() - before).norm()) <= 2 * 0.1 * 0.01 + 1e-6
    trainer.num_sanity_val_steps = trainer.gradient_clip_val = 0
    assert (trainer.num_sanity_val_steps, trainer.gradient_clip_val) == (0, None)
    trainer.num_sanity_val_steps = -1
    assert trainer.num_sanity_val_steps == math.inf


def test_fit_goes_on_after_its_limit_is_raised_and_its_loops_are_read(pl):
    net, trainer = make_net(pl), pl.Trainer(max_epochs=1, accelerator="cpu", num_sanity_val_steps=0, **QUIET)
    trainer.fit(net, LOADER, LOADER)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(net, LOADER, LOADER)
    assert net.seen == [(1, 0, 0, 1), (1, 0, 1, 1), (1, 0, 2, 1), (2, 1, 0, 2), (2, 1, 1, 2), (2, 1, 2, 2)]
    assert net.ended == (2, 6, 6, [3])
    assert trainer.fit_loop.epoch_progress.current.completed == trainer.current_epoch == 2


@pytest.mark.parametrize("name", ["fit_loop", "validate_loop", "test_loop", "predict_loop"])
def test_loops_cannot_be_replaced(pl, name):
    trainer = pl.Trainer(accelerator="cpu", **QUIET)
    with pytest.raises(core.ConfigurationError, match="loop can't be replaced by object: core has loops of its own"):
        setattr(trainer, name, object())


def test_a_strategy_has_the_number_of_its_processes(pl):
    trainer = pl.Trainer(strategy="ddp", devices=2, accelerator="cpu", **QUIET)
    assert trainer.strategy.num_processes == 2
    assert trainer._accelerator_connector.is_distributed  # what callbacks of optuna ask


@pytest.mark.parametrize("name", ["overfit_batches", "val_check_batch", "enable_autolog_hparams"])
def test_an_attribute_that_would_have_no_effect_is_refused_where_it_is_set(pl, name):
    trainer = pl.Trainer(logger=False, accelerator="cpu")
    with pytest.raises(core.ConfigurationError, match=f"trainer.{name} can't be set here"):
        setattr(trainer, name, 1)
