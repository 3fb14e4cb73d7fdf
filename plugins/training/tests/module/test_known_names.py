"""Names that people know from other trainers: each is there, or the page about them has it."""

import argparse
import json
import logging
import pickle
from collections import OrderedDict
from functools import partial
from pathlib import Path

import pytest
import torch

import core
from core import (
    ConfigurationError,
    DataModule,
    Fabric,
    Trainer,
    rank_zero_info,
    rank_zero_only,
    rank_zero_warn,
)
from core.callbacks import EarlyStopping, ModelCheckpoint, ProgressBar
from core.loggers import CSVLogger, flatten_names
from core.strategies import SingleDeviceStrategy
from support import small_nets
from support.checkout import in_checkout
from support.small_nets import quiet_trainer


class Net(small_nets.Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        self.log("hidden", loss, logger=False)
        return loss


class Fails(Net):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def training_step(self, batch, batch_idx):
        if self.global_step == self.step:
            raise KeyError("a bug")
        return super().training_step(batch, batch_idx)


def make(**options):
    return quiet_trainer(**{"max_epochs": 1, "num_sanity_val_steps": None, **options})


def data():
    return torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)


def test_the_page_about_lightning_has_the_names_that_go_otherwise():
    # As the page writes each.
    typed = """
Trainer(max_epoch= Trainer(gpus= LightningModule trainer.lightning_module device_ids precision seed_everything(seed,
trainer.save_checkpoint(path) LearningRateFinder BatchSizeFinder BackboneFinetuning ModelPruning core-torchao cli_for(
grad_norm( rank_zero_info STEP_OUTPUT weights_only= dataclasses.asdict( outputs["loss"] swa_epoch_start=
"""
    page = in_checkout("docs/coming-from-lightning.md").read_text()
    assert [name for name in [*typed.split(), "step number in loggers"] if name not in page] == []


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("max_epoch", "Did you mean 'max_epochs'?"),
        ("enable_checkpoint", "Did you mean 'enable_checkpointing'?"),
        ("gpus", "docs/coming-from-lightning.md"),
        ("no_such_thing", "help(Trainer)"),
    ],
)
def test_an_argument_that_is_not_there_is_answered(name, answer):
    with pytest.raises(ConfigurationError, match=f"Trainer has no argument '{name}'") as caught:
        Trainer(**{name: 1})
    assert answer in str(caught.value)


def test_any_other_name_is_missing_as_names_are():
    assert not hasattr(core, "no_such_thing")
    with pytest.raises(ImportError, match="cannot import name 'no_such_thing'"):
        exec("from core import no_such_thing", {})


def test_a_property_that_fails_keeps_its_own_error():
    trainer = make()
    trainer.options = None
    with pytest.raises(
        AttributeError, match="'NoneType' object has no attribute 'limit_val_batches'"
    ):
        _ = trainer.limit_val_batches


def test_attributes_before_a_run():
    checkpoint, stopping, bar = ModelCheckpoint(), EarlyStopping("loss"), ProgressBar()
    trainer = make(
        callbacks=[checkpoint, stopping, bar], enable_checkpointing=None, enable_progress_bar=None
    )
    assert trainer.checkpoint_callbacks == [checkpoint] == [trainer.checkpoint_callback]
    assert trainer.early_stopping_callbacks == [stopping] == [trainer.early_stopping_callback]
    assert trainer.progress_bar_callback is bar


def test_attributes_of_what_was_passed_and_of_what_was_not():
    options = {
        "limit_train_batches": 3,
        "limit_val_batches": 0.5,
        "log_every_n_steps": 7,
        "max_steps": 7,
    }
    trainer = make(**options, precision="bf16-mixed")
    others = {
        "limit_test_batches": None,
        "check_val_every_n_epoch": 1,
        "val_check_interval": None,
        "max_epochs": 1,
    }
    places = {"num_devices": 1, "num_nodes": 1, "device_ids": [0], "precision": "bf16-mixed"}
    nothing = dict.fromkeys(
        ("checkpoint_callback", "early_stopping_callback", "model", "lightning_module")
    )
    expected = {
        **options,
        **others,
        **places,
        **nothing,
        "interrupted": False,
        "received_sigterm": False,
    }
    assert {name: getattr(trainer, name) for name in expected} == expected
    assert trainer.state == (None, None, "initializing")


def test_attributes_within_a_run_and_after_it():
    class Watching(Net):
        def validation_step(self, batch, batch_idx):
            stages[self.trainer.state] = self.trainer.model is self.trainer.strategy.model

        def on_train_batch_end(self, outputs, batch, batch_idx):
            stages[self.trainer.state] = self.trainer.lightning_module is self

    net, trainer, stages = Watching(), make(limit_train_batches=1), {}
    trainer.fit(net, data(), data())
    assert stages == {
        ("fit", stage, "running"): True for stage in ("sanity_check", "train", "validate")
    }
    assert trainer.state == ("fit", None, "finished")
    assert trainer.model is trainer.lightning_module is net
    assert set(trainer.logged_metrics) == {"loss"} < set(trainer.callback_metrics)


def test_rank_zero_helpers(monkeypatch, caplog):
    note = rank_zero_only(lambda value: value)
    assert (note(1), rank_zero_only.rank) == (1, 0)
    with caplog.at_level(logging.INFO, "core"):
        rank_zero_info("step %d", 3)
    assert caplog.messages == ["step 3"]
    with pytest.warns(UserWarning, match="careful") as caught:
        rank_zero_warn("careful")
    assert caught[0].filename == __file__
    monkeypatch.setenv("RANK", "1")  # as torchrun sets it
    assert (note(2), rank_zero_only.rank) == (None, 1)
    rank_zero_warn("careful")  # a warning is an error


def test_a_seed_may_be_left_out_and_workers_may_be_named():
    assert core.seed_everything() == 0
    first = torch.rand(1)
    assert core.seed_everything(0, workers=True) == 0
    assert torch.equal(torch.rand(1), first)


@pytest.fixture
def fabric():
    made = Fabric(accelerator="cpu", devices=1)
    yield made
    made.teardown()


def test_fabric_brings_a_module_to_the_device_in_any_case(fabric):
    fabric.setup(torch.nn.Linear(2, 1), move_to_device=True)
    with pytest.raises(
        ConfigurationError, match="keep a module that is to stay where it is out of setup"
    ):
        fabric.setup(torch.nn.Linear(2, 1), move_to_device=False)


def test_fabric_saves_what_a_filter_keeps(fabric, tmp_path):
    path, net = tmp_path / "x.ckpt", torch.nn.Linear(2, 1)
    model = fabric.setup(net)
    fabric.save(
        path, {"model": model, "epoch": 3}, filter={"model": lambda name, value: name == "bias"}
    )
    loaded = fabric.load(path, weights_only=True)
    assert (loaded["epoch"], loaded["model"].keys()) == (3, {"bias"})
    torch.nn.init.zeros_(net.bias)
    fabric.load(path, {"model": model}, strict=False)
    assert torch.equal(net.bias, loaded["model"]["bias"])
    with pytest.raises(ConfigurationError, match="expected the name of a module"):
        fabric.save(path, {"model": model}, filter={"modle": lambda name, value: True})
    with pytest.raises(ConfigurationError, match="nothing in it is executed"):
        fabric.load(path, weights_only=False)


def test_fabric_takes_a_gradient_by_position(fabric):
    net = torch.nn.Linear(2, 3)
    fabric.backward(fabric.setup(net)(torch.ones(1, 2)), torch.tensor([[1.0, 2.0, 3.0]]))
    assert net.bias.grad.tolist() == [1.0, 2.0, 3.0]


def test_fabric_sets_up_no_loaders(fabric):
    assert fabric.setup_dataloaders() == []


def test_no_training_batches_says_how_to_validate_only():
    with pytest.raises(ConfigurationError, match=r"To validate only, call trainer\.validate"):
        make(limit_train_batches=0).fit(Net(), data())


def test_loggers_take_a_namespace_and_tell_their_folders(tmp_path):
    logger = CSVLogger(tmp_path, name="runs")
    logger.log_hyperparams(argparse.Namespace(lr=0.1))
    assert json.loads(Path(logger.log_dir, "hparams.json").read_text()) == {"lr": 0.1}
    assert (logger.save_dir, logger.root_dir) == (str(tmp_path), str(tmp_path / "runs"))
    assert flatten_names(argparse.Namespace(model=argparse.Namespace(width=8), lr=1)) == {
        "model/width": 8,
        "lr": 1,
    }


def test_the_scores_of_a_model_checkpoint(tmp_path):
    best, net = ModelCheckpoint(tmp_path, monitor="score", save_top_k=2), Net()
    assert (best.best_model_score, best.current_score) == (None, None)
    net.on_train_epoch_end = lambda: net.log("score", [1.0, 3.0, 2.0][net.current_epoch])
    make(max_epochs=3, callbacks=[best], enable_checkpointing=None).fit(net, data())
    assert (best.best_model_score, best.current_score, len(best.best_k_models)) == (1, 2, 2)


def test_the_names_of_checkpoints(tmp_path):
    class Named(ModelCheckpoint):
        CHECKPOINT_NAME_LAST, CHECKPOINT_JOIN_CHAR, CHECKPOINT_EQUALS_CHAR = "newest", "_", "-"
        FILE_EXTENSION, STARTING_VERSION = ".state", 2

    options = {"enable_checkpointing": None, "default_root_dir": tmp_path}
    make(callbacks=[Named(tmp_path, save_last=True)], **options).fit(Net(), data())
    again = Named(tmp_path, save_last=True)
    trainer = make(max_epochs=2, callbacks=[again], **options)
    trainer.fit(Net(), data(), ckpt_path="last")
    assert trainer.global_step == 8
    assert again.best_model_path == str(tmp_path / "epoch-1_step-8.state")
    assert {path.name for path in tmp_path.iterdir()} == {"epoch-1_step-8.state", "newest.state"}


def test_a_best_path_that_is_set():
    first, again = ModelCheckpoint("a"), ModelCheckpoint("a")
    first.best_model_path = Path("moved")
    again.load_state_dict(first.state_dict())
    assert again.best_model_path == "moved"


def test_an_exception_is_saved_under_a_name_of_its_own(tmp_path):
    saving = ModelCheckpoint(tmp_path, "{never}", save_on_exception=True, every_n_epochs=9)
    with pytest.raises(KeyError):
        make(max_epochs=2, callbacks=[saving], enable_checkpointing=None).fit(Fails(5), data())
    assert [path.name for path in tmp_path.iterdir()] == ["exception-epoch=1-step=5.ckpt"]


def test_a_strategy_hears_of_an_exception():
    class Hearing(SingleDeviceStrategy):
        heard = ()

        def on_exception(self, exception):
            self.heard = (*self.heard, repr(exception), self.model is not None)

    trainer = make(strategy=Hearing())
    with pytest.raises(KeyError):
        trainer.fit(Fails(0), data())
    assert trainer.strategy.heard == ("KeyError('a bug')", True)
    assert trainer.state == ("fit", None, "interrupted")


class Sized(Net):
    def __init__(self, width, options=None):
        super().__init__()
        self.width, self.options = width, options


@pytest.fixture
def sized(tmp_path):
    trainer = make()
    trainer.fit(Sized(3), data())
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    return partial(Sized.load_from_checkpoint, tmp_path / "x.ckpt")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hparams.json", '{"width": 5, "options": {"depth": 2}}'),
        ("hparams.yaml", "width: 5\noptions: {depth: 2}\n"),
    ],
)
def test_hyperparameters_from_a_file(tmp_path, sized, name, text):
    file = tmp_path / name
    file.write_text(text)
    loaded = sized(hparams_file=file)
    assert (loaded.width, loaded.options.depth) == (5, 2)
    assert sized(hparams_file=file, width=7).width == 7


@pytest.mark.parametrize("name", ["hparams.json", "hparams.yaml"])
@pytest.mark.parametrize(
    ("text", "answer"), [("[1]", "expected names with values"), ("{", "can't be read")]
)
def test_a_file_without_hyperparameters(tmp_path, sized, name, text, answer):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=answer):
        sized(hparams_file=tmp_path / name)


def test_hyperparameters_of_a_config_library_are_plain(tmp_path):
    class Configured(Net):
        def __init__(self, cfg, sizes=(), plain=None):
            super().__init__()
            self.save_hyperparameters()

    omegaconf = pytest.importorskip("omegaconf", reason="the extra `dev` brings it")
    cfg = omegaconf.OmegaConf.create(
        {"model": {"width": 8, "twice": "${model.width}"}, "lrs": [0.1, 0.2]}
    )
    # a warning is an error
    net, trainer = Configured(cfg, cfg.lrs, plain={"depth": OrderedDict(width=1)}), make()
    assert (net.hparams.cfg, type(net.hparams.cfg)) == (cfg, type(cfg))
    trainer.fit(net, data())
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    hparams = Configured.load_from_checkpoint(tmp_path / "x.ckpt").hparams
    given = {"model": {"width": 8, "twice": 8}, "lrs": [0.1, 0.2]}
    assert hparams == {"cfg": given, "sizes": [0.1, 0.2], "plain": {"depth": {"width": 1}}}
    assert hparams.cfg.model.width == 8
    assert type(hparams.plain) is type(hparams.plain["depth"]) is dict, "as Lightning gives it back"
    with pytest.warns(UserWarning, match="'cfg' of Configured is a omegaconf"):
        Configured(omegaconf.OmegaConf.create({"path": "???"}))


@pytest.mark.parametrize("is_empty", [True, False])
def test_an_empty_module_is_not_initialized(fabric, is_empty):
    torch.manual_seed(0)
    noise = torch.zeros(2).normal_()
    torch.manual_seed(0)
    with fabric.init_module(empty_init=is_empty):
        made = torch.nn.ModuleList(
            [torch.nn.Linear(2, 2), torch.nn.Embedding(3, 2), torch.nn.BatchNorm1d(2)]
        )
        torch.nn.init.xavier_normal_(made[0].weight)
        torch.nn.init.kaiming_uniform_(made[1].weight)
        made.register_buffer("noise", torch.zeros(2).normal_(), persistent=False)
    assert torch.equal(made.noise, noise) is is_empty, "only the buffer has drawn random numbers"


def test_a_data_module_of_data_sets():
    seen = []

    class Sees(Net):
        def validation_step(self, batch, batch_idx):
            seen.append(batch[:, 0].tolist())

    rows = list(torch.arange(16.0).reshape(4, 4))
    module, trainer = (
        pickle.loads(pickle.dumps(DataModule.from_datasets(rows, rows, batch_size=2))),
        make(),
    )
    trainer.fit(Sees(), datamodule=module)
    assert seen[-2:] == [[0.0, 4.0], [8.0, 12.0]]
    assert trainer.global_step == 2
    assert isinstance(trainer.train_dataloader.sampler, torch.utils.data.RandomSampler)
    with pytest.raises(ConfigurationError, match="No prediction loader"):
        trainer.predict(Sees(), datamodule=module)
