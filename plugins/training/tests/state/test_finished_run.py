"""A run that is started again where it has ended, or past that."""

import os
from datetime import timedelta

import pytest
import torch

from core import Callback, CheckpointError, Trainer
from core.callbacks import ModelCheckpoint
from support.small_nets import QUIET, Net, batches, quiet_trainer


class Logging(Net):
    """With hyperparameters, which a logger would write."""

    def __init__(self, note="kept"):
        super().__init__()
        self.save_hyperparameters()

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss


def fit(root, module=None, *, num_batches=3, callbacks=(), ckpt_path="last", **options):
    quiet = {**QUIET, "logger": True, "enable_checkpointing": True, "default_root_dir": root}
    trainer = Trainer(callbacks=[*callbacks], **{**quiet, **options})
    trainer.fit(module or Logging(), batches(num_batches), ckpt_path=ckpt_path)
    return trainer


def runs(root):
    return sorted(os.listdir(root / "core_logs"))


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"max_epochs": 2}, "of a run of 2 epochs and 6 optimizer steps, by max_epochs=2."),
        ({"max_steps": 4}, "of a run of 1 epochs and 4 optimizer steps, by max_steps=4."),
        (
            {"max_epochs": 5, "max_steps": 6},
            "of a run of 2 epochs and 6 optimizer steps, by max_steps=6.",
        ),
    ],
)
def test_a_finished_run_that_is_started_again_says_so_and_ends_well(tmp_path, capsys, limits, told):
    class Heard(Callback):
        def __init__(self):
            self.hooks = []

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            self.hooks.append("batch")

        def on_fit_end(self, trainer, module):
            self.hooks.append("end")

    first = fit(tmp_path, **limits)
    assert "trains nothing" not in capsys.readouterr().out
    heard, module = Heard(), Logging()
    again = fit(tmp_path, module, callbacks=[heard], **limits)
    out = capsys.readouterr().out
    assert (
        f"fit trains nothing: {again.ckpt_path} is the end {told} Weights and callback_metrics are "
        "the" in out
    )
    assert heard.hooks == ["end"]
    assert runs(tmp_path) == ["version_0"]
    assert again.global_step == first.global_step
    assert again.callback_metrics == first.callback_metrics
    assert torch.equal(module.layer.weight, first.module.layer.weight)


def test_a_last_batch_of_several_steps_is_an_end_too(tmp_path, capsys):
    class TwoSteps(Net):
        """Two optimizer steps a batch, so that a run ends past an odd `max_steps`."""

        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            for _ in range(2):
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(super().training_step(batch, batch_idx))
                optimizer.step()

    assert fit(tmp_path, TwoSteps(), max_steps=3).global_step == 4
    assert fit(tmp_path, TwoSteps(), max_steps=3).global_step == 4
    assert "by max_steps=3" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match="4 optimizer steps, which is past max_steps=2"):
        fit(tmp_path, TwoSteps(), max_steps=2)


def test_a_time_that_is_over_is_told(tmp_path, capsys):
    fit(tmp_path, max_epochs=1)
    fit(tmp_path, max_epochs=2, max_time=timedelta(0))
    assert "by max_time='0:00:00'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            {"max_epochs": 1},
            r"epoch=1-step=6\S* was saved in epoch 2 \(from 0\), after 0 of its batches and 6 "
            r"optimizer steps, which is past max_epochs=1: there is nothing to train\. Raise "
            r"max_epochs to train on, pass an earlier",
        ),
        (
            {"max_epochs": 9, "max_steps": 5},
            r"6 optimizer steps, which is past max_steps=5: .* Raise max_steps to",
        ),
        (
            {"fast_dev_run": True},
            r"past max_epochs=1: .* fast_dev_run tries a run from its beginning: leave ckpt_path",
        ),
    ],
)
def test_past_a_limit_is_an_error(tmp_path, limits, message):
    fit(tmp_path, max_epochs=2)
    module = Logging()
    before = module.layer.weight.clone()
    trainer = quiet_trainer(
        **{"logger": True, "enable_checkpointing": True, "default_root_dir": tmp_path, **limits}
    )
    (path,) = (tmp_path / "core_logs" / "version_0" / "checkpoints").glob("*.ckpt")
    with pytest.raises(CheckpointError, match=message):
        trainer.fit(module, batches(), ckpt_path=path)
    assert runs(tmp_path) == ["version_0"]
    assert trainer.callback_metrics == {}
    assert torch.equal(module.layer.weight, before)


def test_an_epoch_that_has_begun_is_past_it(tmp_path):
    saver = ModelCheckpoint(tmp_path / "c", every_n_train_steps=4, save_top_k=-1)
    fit(tmp_path, callbacks=[saver], max_epochs=2, ckpt_path=None)
    within = tmp_path / "c" / "epoch=1-step=4.ckpt"
    with pytest.raises(
        CheckpointError, match=r"epoch 1 \(from 0\), after 1 of its batches .* past max_epochs=1"
    ):
        fit(tmp_path, max_epochs=1, ckpt_path=within)
    assert fit(tmp_path, max_epochs=2, ckpt_path=within).global_step == 6
