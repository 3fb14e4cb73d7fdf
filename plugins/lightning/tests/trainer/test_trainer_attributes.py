"""Attributes of the Trainer that programs read and set, with what they are under Lightning
2.6.6.
"""

import math

import pytest

import core


def test_states_are_lightnings(lit, installed):
    states = installed("lightning.pytorch.trainer.states")

    class Net(lit.Plain):
        def on_train_batch_end(self, *_):
            state = self.trainer.state
            self.seen.append(
                (state.fn, state.stage, state.finished, self.trainer.enable_validation)
            )

    net, trainer = Net(), lit.make_trainer(max_epochs=1)
    assert trainer.state == states.TrainerState()
    trainer.fit(net, lit.load(), lit.load())
    assert net.seen[-1] == (states.TrainerFn.FITTING, states.RunningStage.TRAINING, False, True)
    assert trainer.state == states.TrainerState(
        states.TrainerStatus.FINISHED, states.TrainerFn.FITTING
    )
    assert (trainer.state.finished, trainer.state.stopped) == (True, True)
    trainer.validate(net, lit.load(), verbose=False)
    assert trainer.state.fn is states.TrainerFn.VALIDATING


def test_options_are_lightnings_and_can_be_set_between_stages(lit):
    net, trainer = lit.Rising(), lit.make_trainer(max_epochs=1, gradient_clip_val=0.5)
    limits = [f"limit_{stage}_batches" for stage in ("train", "val", "test", "predict")]
    assert [getattr(trainer, name) for name in (*limits, "val_check_interval")] == [1.0] * 5
    assert (
        trainer.check_val_every_n_epoch,
        trainer.log_every_n_steps,
        trainer.num_sanity_val_steps,
    ) == (1, 50, 0)
    assert (trainer.gradient_clip_val, trainer.logger, trainer.barebones) == (0.5, None, False)
    trainer.limit_train_batches, trainer.limit_val_batches = 2, 1
    trainer.num_sanity_val_steps = trainer.log_every_n_steps = 1
    trainer.check_val_every_n_epoch, trainer.gradient_clip_val = 2, 0.01
    before = net.layers.weight.detach().clone()
    trainer.fit(net, lit.load(), lit.load())
    assert (trainer.global_step, net.seen) == (2, [0]), "validated before training alone"
    assert 0 < float((net.layers.weight.detach() - before).norm()) <= 2 * 0.1 * 0.01 + 1e-6
    trainer.num_sanity_val_steps = trainer.gradient_clip_val = 0
    assert (trainer.num_sanity_val_steps, trainer.gradient_clip_val) == (0, None)
    trainer.num_sanity_val_steps = -1
    assert trainer.num_sanity_val_steps == math.inf


def test_fit_goes_on_after_its_limit_is_raised_and_its_loops_are_read(lit):
    class Net(lit.Plain):
        def training_step(self, batch, batch_idx):
            loop = self.trainer.fit_loop
            epochs, batches = loop.epoch_progress.current, loop.epoch_loop.batch_progress.current
            self.seen.append((epochs.ready, epochs.completed, batches.processed, loop.max_epochs))
            return super().training_step(batch, batch_idx)

        def on_train_epoch_end(self):
            loop = self.trainer.fit_loop.epoch_loop
            processed = (
                self.trainer.fit_loop.epoch_progress.current.processed,
                loop.batch_progress.total.processed,
            )
            self.ended = (*processed, loop.global_step, loop.val_loop.max_batches)

    net, trainer = Net(), lit.make_trainer(max_epochs=1)
    for max_epochs in (1, 2):
        trainer.fit_loop.max_epochs = max_epochs
        trainer.fit(net, lit.load(4), lit.load(4))
    assert net.seen == [(1, 0, 0, 1), (1, 0, 1, 1), (2, 1, 0, 2), (2, 1, 1, 2)]
    assert net.ended == (2, 4, 4, [2])
    assert trainer.fit_loop.epoch_progress.current.completed == trainer.current_epoch == 2


@pytest.mark.parametrize("name", ["fit_loop", "validate_loop", "test_loop", "predict_loop"])
def test_loops_cannot_be_replaced(lit, name):
    with pytest.raises(
        core.ConfigurationError, match="loop can't be replaced by object: core has loops of its own"
    ):
        setattr(lit.make_trainer(), name, object())


def test_a_strategy_has_the_number_of_its_processes(lit):
    trainer = lit.make_trainer(strategy="ddp", devices=2)
    assert trainer.strategy.num_processes == 2
    assert trainer._accelerator_connector.is_distributed  # what callbacks of optuna ask


@pytest.mark.parametrize("name", ["overfit_batches", "val_check_batch", "enable_autolog_hparams"])
def test_an_attribute_that_would_have_no_effect_is_refused_where_it_is_set(lit, name):
    with pytest.raises(core.ConfigurationError, match=f"trainer.{name} can't be set here"):
        setattr(lit.make_trainer(), name, 1)
