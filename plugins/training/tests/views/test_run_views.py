"""The questions of modules, callbacks and scripts about a run, and calls that lean on an earlier
one.
"""

from dataclasses import replace
from datetime import timedelta

import pytest
import torch
from recording import (
    Recorder,
    Validating,
    loader,
    make_parallel_trainer,
    make_trainer,
    seen,
)

from core import ConfigurationError, Fabric, NotYetChosenError, Strategy, Trainer
from core.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from core.checkpoint import newest_valid
from core.profilers import SimpleProfiler
from core.strategies import SingleDeviceStrategy
from support.small_nets import QUIET, Net, batches, fit


def test_what_is_going_on(tmp_path):
    modes = ("training", "validating", "testing", "predicting", "sanity_checking")

    class Asking(Validating):
        """The trainer's answers about itself in hooks of each kind."""

        def __init__(self, root):
            super().__init__(root)
            self.said = {}

        def ask(self, name):
            self.said[name] = [mode for mode in modes if getattr(self.trainer, mode)]

        def setup(self, stage):
            self.ask(f"setup {stage}")

        def on_train_batch_start(self, *_):
            self.ask("train")
            assert [type(optimizer).__name__ for optimizer in self.trainer.optimizers] == ["SGD"]

        def on_validation_batch_start(self, *_):
            self.ask(
                "sanity" if self.trainer.sanity_checking else f"validation in {self.trainer.stage}"
            )

        def on_test_batch_start(self, *_):
            self.ask("test")

        def on_predict_batch_start(self, *_):
            self.ask("predict")

        def on_train_end(self):
            self.ask("train end")

    module = Asking(tmp_path)
    trainer = make_trainer(tmp_path, num_sanity_val_steps=1)
    trainer.fit(module, loader(), loader())
    for stage in (trainer.validate, trainer.test, trainer.predict):
        stage(dataloaders=loader())
    assert module.said == {
        "setup fit": ["training"],
        "sanity": ["sanity_checking"],
        "train": ["training"],
        "validation in fit": ["validating"],
        "train end": ["training"],
        "setup validate": ["validating"],
        "validation in validate": ["validating"],
        "setup test": ["testing"],
        "test": ["testing"],
        "setup predict": ["predicting"],
        "predict": ["predicting"],
    }
    assert not any(getattr(trainer, mode) for mode in modes)


@pytest.mark.parametrize("make", [make_trainer, make_parallel_trainer])
def test_the_model_may_be_left_out_after_fit(tmp_path, make):
    trainer = make(tmp_path, enable_checkpointing=True)
    module = Recorder(tmp_path)
    trainer.fit(model=module, train_dataloaders=loader(8, 2))
    with torch.no_grad():
        trained = module.layer.weight.clone()
        module.layer.weight.zero_()
    trainer.test(dataloaders=loader(8, 2), ckpt_path="last")
    assert torch.equal(module.layer.weight, trained)
    assert seen(tmp_path, "test")


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_no_model_at_all_is_an_error(tmp_path, stage):
    with pytest.raises(
        ConfigurationError,
        match=r"No model was given, and this Trainer has run none before. Pass one",
    ):
        getattr(make_trainer(tmp_path), stage)(dataloaders=loader())


def test_a_second_fit_that_has_nothing_left_to_do_says_so(tmp_path):
    trainer, other = make_trainer(tmp_path, max_epochs=2), Recorder(tmp_path)
    trainer.fit(Recorder(tmp_path), loader())
    untrained = other.layer.weight.clone()
    with pytest.warns(
        UserWarning, match="fit trains nothing: this Trainer has done 2 epochs and 6 steps"
    ):
        trainer.fit(other, loader())
    trainer.options = replace(trainer.options, max_epochs=None, max_time=timedelta(0))
    with pytest.warns(UserWarning, match="fit trains nothing: .* was told max_time='0:00:00'"):
        trainer.fit(other, loader())
    assert torch.equal(other.layer.weight, untrained)
    # no warning: that is what was asked for
    make_trainer(tmp_path, max_epochs=0).fit(other, loader())


# a strategy that sets up in its own way -----------------------------------------------------------


class WithTestStep(Net):
    def test_step(self, batch):
        pass


def test_a_setup_that_does_its_own_part_only():
    class WithoutSuper(SingleDeviceStrategy):
        calls = 0

        def setup(self, trainer):
            self.calls += 1

    trainer = fit(Net(), strategy=WithoutSuper())
    assert trainer.global_step == 3
    assert trainer.test(WithTestStep(), batches()) == [{}]
    assert trainer.strategy.calls == 2


def test_a_setup_of_another_module():
    class Other(Strategy):
        def setup(self, trainer):
            self.session.add_module(torch.nn.Linear(1, 1))

    message = (
        r"Net was not set up with this Other, which has set up Linear\. .*ends in "
        r"super\(\)\.setup\(trainer\), or calls"
    )
    with pytest.raises(ConfigurationError, match=message):
        fit(Net(), strategy=Other())


@pytest.mark.parametrize("kind", [Strategy, SingleDeviceStrategy])
def test_a_strategy_without_a_device(kind):
    with pytest.raises(
        ConfigurationError,
        match=f"{kind.__name__} has 0 devices on this node, .* a Fabric or Trainer",
    ):
        _ = kind().root_device


@pytest.mark.parametrize("part", ["launcher", "accelerator"])
def test_a_part_of_a_strategy_that_nothing_has_chosen(part):
    strategy = SingleDeviceStrategy()
    with pytest.raises(
        NotYetChosenError,
        match=f"SingleDeviceStrategy has no {part} yet. Give the strategy to a Fab",
    ):
        getattr(strategy, part)
    assert not hasattr(strategy, part)
    assert getattr(Fabric(strategy=strategy, accelerator="cpu").strategy, part) is not None
    with pytest.raises(
        AttributeError, match="'SingleDeviceStrategy' object has no attribute 'louncher'"
    ):
        strategy.louncher  # noqa: B018


def test_the_home_folder(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    profiler, saving = (
        SimpleProfiler("~/profiles", "profile"),
        ModelCheckpoint("~/kept", save_last=True),
    )
    options = {
        **QUIET,
        "logger": True,
        "enable_checkpointing": True,
        "profiler": profiler,
        "callbacks": saving,
    }
    trainer = Trainer(**options, max_epochs=1, default_root_dir="~/runs")
    trainer.fit(WithTestStep(), batches())
    trainer.save_checkpoint("~/own.ckpt")
    trainer.test(WithTestStep(), batches(), ckpt_path="~/own.ckpt")
    assert newest_valid("~/kept").startswith(str(tmp_path / "home/kept"))
    assert OnExceptionCheckpoint("~/raised").ckpt_path == str(
        tmp_path / "home/raised/on_exception.ckpt"
    )
    assert {path.name for path in (tmp_path / "home").iterdir()} >= {
        "runs",
        "kept",
        "own.ckpt",
        "profiles",
    }
    assert list((tmp_path / "work").iterdir()) == []
