"""The questions of modules, callbacks and scripts about a run, and calls that lean on an earlier one."""

import pytest
import torch

from core import Callback, ConfigurationError, Fabric, NotYetChosenError, Strategy, Trainer
from core.callbacks import EarlyStopping, ModelCheckpoint, OnExceptionCheckpoint
from core.checkpoint import newest_valid
from core.profilers import SimpleProfiler
from core.strategies import SingleDeviceStrategy
from support.small_nets import QUIET, Net, batches
from trainer.recording import Recorder, Validating, loader, make_parallel_trainer, make_trainer, seen


class Asking(Callback):
    """The trainer's answers about itself in hooks of each kind."""

    def __init__(self):
        self.said = {}

    def note(self, name, trainer):
        modes = ("training", "validating", "testing", "predicting", "sanity_checking")
        self.said[name] = [mode for mode in modes if getattr(trainer, mode)]

    def setup(self, trainer, module, stage):
        self.note(f"setup {stage}", trainer)

    def on_sanity_check_start(self, trainer, module):
        self.note("sanity", trainer)

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.note("train", trainer)
        self.said["optimizers"] = [type(optimizer).__name__ for optimizer in trainer.optimizers]

    def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        if not trainer.sanity_checking:
            self.note(f"validation in {trainer.stage}", trainer)

    def on_test_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        self.note("test", trainer)

    def on_predict_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        self.note("predict", trainer)

    def on_train_end(self, trainer, module):
        self.note("train end", trainer)


def test_what_is_going_on(tmp_path):
    asking = Asking()
    trainer = make_trainer(tmp_path, callbacks=asking, num_sanity_val_steps=1)
    trainer.fit(Validating(tmp_path), loader(), loader())
    trainer.validate(dataloaders=loader())
    trainer.test(dataloaders=loader())
    trainer.predict(dataloaders=loader())
    assert asking.said == {
        "setup fit": ["training"],
        "sanity": ["sanity_checking"],
        "train": ["training"],
        "optimizers": ["SGD"],
        "validation in fit": ["validating"],
        "train end": ["training"],
        "setup validate": ["validating"],
        "validation in validate": ["validating"],
        "setup test": ["testing"],
        "test": ["testing"],
        "setup predict": ["predicting"],
        "predict": ["predicting"],
    }
    assert not any((trainer.training, trainer.validating, trainer.testing, trainer.predicting))


def test_limits_and_callbacks(tmp_path):
    saver, stopper = ModelCheckpoint(dirpath=tmp_path), EarlyStopping("total")
    trainer = make_trainer(tmp_path, max_epochs=3, max_steps=7, enable_checkpointing=True, callbacks=[saver, stopper])
    assert (trainer.max_epochs, trainer.max_steps) == (3, 7)
    assert trainer.checkpoint_callback is saver
    assert trainer.early_stopping_callback is stopper
    plain = make_trainer(tmp_path)
    assert plain.checkpoint_callback is None
    assert plain.early_stopping_callback is None


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
    with pytest.raises(ConfigurationError, match=r"No model was given, and this Trainer has run none before. Pass one"):
        getattr(make_trainer(tmp_path), stage)(dataloaders=loader())


@pytest.mark.parametrize("make", [make_trainer, make_parallel_trainer])
def test_a_second_fit_that_has_nothing_left_to_do_says_so(tmp_path, make):
    trainer = make(tmp_path, max_epochs=2)
    trainer.fit(Recorder(tmp_path), loader())
    other = Recorder(tmp_path)
    untrained = other.layer.weight.clone()
    before = trainer.global_step
    with pytest.warns(UserWarning, match=f"fit trains nothing: this Trainer has done 2 epochs and {before} steps"):
        trainer.fit(other, loader())
    assert torch.equal(other.layer.weight, untrained)
    make_trainer(tmp_path, max_epochs=0).fit(other, loader())  # no warning: that is what was asked for


# a strategy that sets up in its own way ------------------------------------------------------------------------------


class WithoutSuper(SingleDeviceStrategy):
    calls = 0

    def setup(self, trainer):
        WithoutSuper.calls += 1


class WithoutSuperAgain(WithoutSuper):
    def setup(self, trainer):
        self.accelerator.setup()


@pytest.mark.parametrize(("kind", "calls"), [(WithoutSuper, 2), (WithoutSuperAgain, 2)])
def test_a_setup_that_does_its_own_part_only(kind, calls):
    WithoutSuper.calls = 0
    trainer = Trainer(strategy=kind(), max_epochs=1, **QUIET)
    trainer.fit(Net(), batches())
    assert trainer.global_step == 3
    assert trainer.test(type("Tested", (Net,), {"test_step": lambda self, batch: None})(), batches()) == [{}]
    assert WithoutSuper.calls == calls


def test_a_setup_of_another_module():
    class Other(Strategy):
        def setup(self, trainer):
            self.session.add_module(torch.nn.Linear(1, 1))

    message = (
        r"Net was not set up with this Other, which has set up Linear\. .*ends in super\(\)\.setup\(trainer\), or calls"
    )
    with pytest.raises(ConfigurationError, match=message):
        Trainer(strategy=Other(), max_epochs=1, **QUIET).fit(Net(), batches())


@pytest.mark.parametrize("kind", [Strategy, SingleDeviceStrategy])
def test_a_strategy_without_a_device(kind):
    with pytest.raises(ConfigurationError, match=f"{kind.__name__} has 0 devices on this node, .* a Fabric or Trainer"):
        _ = kind().root_device


@pytest.mark.parametrize("part", ["launcher", "accelerator"])
def test_a_part_of_a_strategy_that_nothing_has_chosen(part):
    strategy = SingleDeviceStrategy()
    with pytest.raises(NotYetChosenError, match=f"SingleDeviceStrategy has no {part} yet. Give the strategy to a Fab"):
        getattr(strategy, part)
    assert not hasattr(strategy, part)
    assert getattr(Fabric(strategy=strategy, accelerator="cpu").strategy, part) is not None
    with pytest.raises(AttributeError, match="'SingleDeviceStrategy' object has no attribute 'louncher'"):
        strategy.louncher  # noqa: B018


def test_the_home_folder(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    trainer = Trainer(
        **{**QUIET, "logger": True, "enable_checkpointing": True},
        max_epochs=1,
        default_root_dir="~/runs",
        profiler=SimpleProfiler(dirpath="~/profiles", filename="profile"),
        callbacks=ModelCheckpoint("~/kept", save_last=True),
    )
    trainer.fit(Net(), batches())
    trainer.save_checkpoint("~/own.ckpt")
    trainer.test(type("Tested", (Net,), {"test_step": lambda self, batch: None})(), batches(), ckpt_path="~/own.ckpt")
    assert newest_valid("~/kept").startswith(str(tmp_path / "home/kept"))
    assert OnExceptionCheckpoint("~/raised").ckpt_path == str(tmp_path / "home/raised/on_exception.ckpt")
    assert {path.name for path in (tmp_path / "home").iterdir()} >= {"runs", "kept", "own.ckpt", "profiles"}
    assert list((tmp_path / "work").iterdir()) == []
