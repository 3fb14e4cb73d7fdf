"""Each stage is a run of its own: what goes on from one to the next, and what a search leaves
alone.
"""

import dataclasses
import os

import pytest

from core import Callback, ConfigurationError, Trainer
from core.loggers import CSVLogger
from support.small_nets import QUIET, Net, batches, quiet_trainer


def test_a_fit_on_copies_has_a_run_of_its_own_and_leaves_the_trainers_alone():
    class Own(Trainer):
        """As another package's Trainer is one."""

    class Rated(Net):
        """Notes the Trainer that it meets in each training step."""

        def __init__(self):
            super().__init__()
            self.met = []

        def training_step(self, batch, batch_idx):
            trainer = self.trainer
            self.met.append(
                (type(trainer), trainer.max_steps, len(trainer.callbacks), trainer.global_step)
            )
            return super().training_step(batch, batch_idx)

        def __deepcopy__(self, memo):
            copied = Rated()
            copied.met = self.met  # what the search's copy meets is to be seen here
            return copied

    trainer, module = Own(**QUIET, max_steps=2, callbacks=Callback()), Rated()
    trainer.fit(module, batches(4))
    run = trainer.run
    before = dict(vars(run))
    fitted = module.met[:]
    call = trainer.check_fit_call(module, batches(4), None, None)
    trainer.fit_on_copies(call, Callback(), max_steps=5)
    assert trainer.run is run
    assert vars(run) == before
    assert {met[:3] for met in fitted} == {(Own, 2, 1)}
    assert module.met[len(fitted) :] == [(Own, 5, 1, step) for step in range(5)]
    assert (trainer.should_stop, trainer.global_step, module.trainer) == (False, 2, trainer)


def test_a_stage_goes_on_with_counters_and_settings_of_the_one_before(tmp_path):
    trainer, module = quiet_trainer(max_epochs=1), Net()
    module.forward = lambda batch: module.layer(batch)
    trainer.accumulate_grad_batches = 2
    trainer.fit(module, batches(4))
    first, progress = trainer.run, trainer.progress
    assert trainer.global_step == 2
    trainer.loggers = [CSVLogger(tmp_path)]
    trainer.callbacks = [added := Callback()]
    trainer.default_root_dir = str(tmp_path)
    trainer.predict(module, batches(1))
    assert trainer.run is not first
    assert (trainer.progress, trainer.accumulate_grad_batches, trainer.callbacks) == (
        progress,
        2,
        [added],
    )
    assert [type(logger) for logger in trainer.loggers] == [CSVLogger]
    assert trainer.default_root_dir == str(tmp_path)


def test_a_stop_is_asked_of_one_fit_alone():
    trainer, module = quiet_trainer(max_epochs=2), Net()
    trainer.fit(module, batches(2))
    trainer.should_stop = True
    trainer.options = dataclasses.replace(trainer.options, max_epochs=3)
    trainer.fit(module, batches(2))
    assert (trainer.current_epoch, trainer.should_stop) == (3, False)


def test_what_a_failed_run_was_still_to_save_is_not_saved_by_the_next(tmp_path):
    """It would be a checkpoint of another run, perhaps of another module, under the name that the
    first one chose.
    """

    class SaveWithinWindow(Callback):
        """Asks for a checkpoint within an accumulation window, in which the first run fails."""

        fails = True

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if self.fails and batch_idx == 1:
                trainer.save_checkpoint(path)
                self.fails = False
                raise RuntimeError("planned")

    path = str(tmp_path / "within.ckpt")
    trainer = quiet_trainer(max_epochs=1, accumulate_grad_batches=2, callbacks=SaveWithinWindow())
    with pytest.raises(RuntimeError, match="planned"):
        trainer.fit(Net(), batches(4))
    trainer.fit(Net(), batches(4))
    assert trainer.global_step == 2
    assert not os.path.exists(path)


@pytest.mark.parametrize("stage", ["fit", "predict"])
def test_a_trainer_that_runs_refuses_another_stage(stage):
    class Nested(Net):
        def on_train_epoch_end(self):
            getattr(self.trainer, stage)(Net(), batches(2))

    trainer = quiet_trainer(max_epochs=2)
    with pytest.raises(
        ConfigurationError, match=rf"trainer\.{stage}\(\) was called while trainer\.fit\(\) runs"
    ):
        trainer.fit(Nested(), batches(2))
    trainer.fit(Net(), batches(2))  # after the failed one it serves again
    assert trainer.current_epoch == 2
