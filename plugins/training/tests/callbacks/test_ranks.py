"""Two ranks whose metrics and clocks differ: rank 0's count, and nobody is left behind."""

import os
import pickle
import sys
import warnings
from datetime import timedelta

import pytest
import torch

from core import WorkerError
from core.callbacks import (
    EarlyStopping,
    ModelCheckpoint,
    RichProgressBar,
    StochasticWeightAveraging,
    Timer,
)
from core_testing import in_one_process
from support.tiny import Tiny, loader, make_trainer


def test_they_rank_checkpoints_and_stop_as_rank_0_says(tmp_path):
    class Torn(Tiny):
        """Rank 0's `val_loss` gets worse after the second epoch; rank 1's never does, and it has no
        `x`.
        """

        def validation_step(self, batch, batch_idx):
            rank, epoch = self.global_rank, self.current_epoch
            value = [3.0, 1.0, 2.0, 2.5, 4.0][epoch] if rank == 0 else -float(epoch)
            self.log("val_loss", value, sync_dist=False)
            if rank == 0:
                self.log("x", value, sync_dist=False)

    checkpoint = ModelCheckpoint(tmp_path / "c", "{epoch}-{x:.1f}", monitor="x", save_last="link")
    stopping = EarlyStopping("val_loss", patience=2)
    # as on the way to spawned ranks
    checkpoint, stopping = pickle.loads(pickle.dumps((checkpoint, stopping)))
    trainer = make_trainer(
        tmp_path, checkpoint, stopping, strategy="ddp_fork", devices=2, max_epochs=5
    )
    trainer.fit(Torn(), loader(16), loader())
    assert (trainer.current_epoch, trainer.global_step) == (4, 16)
    names = sorted(name for name in os.listdir(tmp_path / "c") if not name.endswith(".digest"))
    assert names == ["epoch=1-x=1.0.ckpt", "last.ckpt"]
    # The caller has rank 0's state.
    assert checkpoint.best_model_path == str(tmp_path / "c/epoch=1-x=1.0.ckpt")
    assert checkpoint.best_model_score.item() == 1.0
    assert stopping.stopping_reason.startswith("val_loss is 2.5, and did not get better than 1")
    assert trainer.should_stop


def fit(module, root, *callbacks, **options):
    options = {"strategy": "ddp", "devices": 2, **options}
    make_trainer(root, *callbacks, **options).fit(module, loader(16, batch_size=2), loader())
    return module


def test_a_scheduler_that_monitors_a_value_of_single_steps_takes_rank_0s(tmp_path):
    class Slowed(Tiny):
        """A scheduler by step, on a value that gets no better on rank 0, and better on rank 1."""

        def training_step(self, batch, batch_idx):
            self.log("own", -float(batch_idx * self.global_rank))
            return super().training_step(batch, batch_idx)

        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, patience=0, factor=0.5
            )
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "interval": "step", "monitor": "own"},
            }

        def on_train_end(self):
            self.last_rate = self.optimizers().param_groups[0]["lr"]

    modules = in_one_process(lambda: fit(Slowed(lr=1.0), tmp_path, max_epochs=1))
    assert [module.last_rate for module in modules] == [0.125, 0.125]


def test_they_stop_by_rank_0s_clock(tmp_path):
    def train():
        timer, checkpoint = (
            Timer({"seconds": 0.3}),
            ModelCheckpoint(tmp_path / "c", train_time_interval=timedelta(0)),
        )
        module = fit(Tiny(), tmp_path, timer, checkpoint, max_epochs=-1, limit_val_batches=0)
        assert timer.time_elapsed() >= 0.3
        assert os.path.exists(checkpoint.best_model_path)
        return module.trainer.global_step

    first, second = in_one_process(train)
    assert first == second


def test_they_have_the_same_average_and_statistics(tmp_path):
    class Normalized(Tiny):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(2)

        def forward(self, x):
            return self.layer(self.norm(x))

    def train():
        module = fit(Normalized(), tmp_path, StochasticWeightAveraging(0.1, 1), max_epochs=3)
        return [value.tolist() for value in module.state_dict().values()]

    first, second = in_one_process(train)
    assert first == second


def test_one_of_them_draws(tmp_path, capsys):
    in_one_process(
        lambda: fit(Tiny(), tmp_path, RichProgressBar(), enable_progress_bar=True, max_epochs=1)
    )
    assert capsys.readouterr().out.count("train_loss") == 1


def test_an_exception_in_one_of_them_saves_nothing_and_says_so(tmp_path, capfd):
    class Broken(Tiny):
        def setup(self, stage):
            # Pytest makes errors of warnings.
            warnings.resetwarnings()
            warnings.showwarning = lambda message, *_: print(message, file=sys.stderr)

        def training_step(self, batch, batch_idx):
            if batch_idx == 2 and self.global_rank == 1:
                raise RuntimeError("broken")
            return super().training_step(batch, batch_idx)

    saver = ModelCheckpoint(tmp_path / "c", save_on_exception=True)
    with pytest.raises(WorkerError, match="broken"):
        fit(Broken(), tmp_path, saver, strategy="ddp_fork", max_epochs=2)
    assert not (tmp_path / "c").exists()
    assert (
        "RuntimeError came in a run of 2 processes, which can't be brought to save"
        in capfd.readouterr().err
    )
