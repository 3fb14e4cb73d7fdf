"""Two processes whose metrics and clocks differ: rank 0's count, and nobody is left behind."""

import ast
import os
import pickle
import sys
import warnings
from datetime import timedelta

import pytest
import torch

from core.callbacks import EMA, EarlyStopping, ModelCheckpoint, RichProgressBar, StochasticWeightAveraging, Timer
from core_testing import in_one_process
from support.tiny import Tiny, loader
from support.tiny import make_trainer as make_single_trainer
from trainer.callbacks.ranks_program import Normalized, Slowed, Torn, make_trainer


@pytest.fixture
def told(tmp_path, monkeypatch):
    """The results that the ranks have written at the end."""
    monkeypatch.setenv("RANKS_OUT", str(tmp_path / "told"))
    return lambda: ast.literal_eval((tmp_path / "told").read_text())


def test_they_rank_checkpoints_and_stop_as_rank_0_says(tmp_path, told):
    checkpoint = ModelCheckpoint(tmp_path / "c", "{epoch}-{x:.1f}", monitor="x", save_last="link")
    stopping = EarlyStopping("val_loss", patience=2)
    checkpoint, stopping = pickle.loads(pickle.dumps((checkpoint, stopping)))  # as on the way to spawned ranks
    trainer = make_trainer(tmp_path, checkpoint, stopping, max_epochs=5)
    trainer.fit(Torn(), loader(16), loader())
    assert told() == [(4, 16), (4, 16)]
    names = sorted(name for name in os.listdir(tmp_path / "c") if not name.endswith(".digest"))
    assert names == ["epoch=1-x=1.0.ckpt", "last.ckpt"]
    # The caller has rank 0's state.
    assert checkpoint.best_model_path == str(tmp_path / "c/epoch=1-x=1.0.ckpt")
    assert checkpoint.best_model_score.item() == 1.0
    assert stopping.stopping_reason.startswith("val_loss is 2.5, and did not get better than 1")
    assert trainer.should_stop


def fit(module, root, *callbacks, **options):
    make_trainer(root, *callbacks, strategy="ddp", **options).fit(module, loader(16, batch_size=2), loader())
    return module


def test_a_scheduler_that_monitors_a_value_of_single_steps_takes_rank_0s(tmp_path):
    modules = in_one_process(lambda: fit(Slowed(lr=1.0), tmp_path, max_epochs=1))
    assert [module.last_rate for module in modules] == [0.125, 0.125]


def test_they_stop_by_rank_0s_clock(tmp_path, told):
    timer = Timer(timedelta(seconds=0.3))
    checkpoint = ModelCheckpoint(tmp_path / "c", train_time_interval=timedelta(seconds=0.1))
    trainer = make_trainer(tmp_path, timer, checkpoint, max_epochs=-1)
    trainer.fit(Torn(), loader(16))
    first, second = told()
    assert first == second
    assert timer.time_elapsed() >= 0.3
    assert os.path.exists(checkpoint.best_model_path)


@pytest.mark.parametrize(
    ("average", "has_equal_statistics"), [(EMA(0.5), False), (StochasticWeightAveraging(0.1, 1), True)]
)
def test_they_have_the_same_average(tmp_path, average, has_equal_statistics):
    def train(average):
        return fit(Normalized(has_equal_statistics), tmp_path, average, max_epochs=3).compared().tolist()

    first, second = in_one_process(train, average)
    assert first == second


def test_the_average_of_two_ranks_is_that_of_one(tmp_path):
    whole, options = Tiny().double(), {"max_epochs": 2, "precision": "64-true"}
    make_single_trainer(tmp_path, EMA(0.5), **options).fit(whole, loader(16, batch_size=4))
    for split in in_one_process(lambda: fit(Tiny().double(), tmp_path, EMA(0.5), **options)):
        assert torch.allclose(whole.layer.weight, split.layer.weight, rtol=0, atol=1e-10)


def test_one_of_them_draws(tmp_path, capfd):
    make_single_trainer(
        tmp_path, RichProgressBar(), strategy="ddp_fork", devices=2, enable_progress_bar=True, max_epochs=1
    ).fit(Tiny(), loader(16))
    assert capfd.readouterr().out.count("train_loss") == 1


def test_an_exception_in_one_of_them_saves_nothing_and_says_so(tmp_path, capfd):
    with pytest.raises(Exception, match="broken"):
        make_trainer(tmp_path, ModelCheckpoint(tmp_path / "c", save_on_exception=True), max_epochs=2).fit(
            Broken(), loader(16)
        )
    assert not (tmp_path / "c").exists()
    assert (
        "RuntimeError came in a run of 2 processes, which can't be brought to save together" in capfd.readouterr().err
    )


class Broken(Tiny):
    def setup(self, stage):
        # Pytest makes errors of warnings.
        warnings.resetwarnings()
        warnings.showwarning = lambda message, *_: print(message, file=sys.stderr)

    def training_step(self, batch, batch_idx):
        if batch_idx == 2 and self.global_rank == 1:
            raise RuntimeError("broken")
        return super().training_step(batch, batch_idx)
