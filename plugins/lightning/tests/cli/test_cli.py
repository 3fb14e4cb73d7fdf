"""LightningCLI: what it parses, makes, runs and saves, with the weights that Lightning 2.6.6 gave
for its words.
"""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
import yaml

import core

if importlib.util.find_spec("jsonargparse") is None:
    pytest.skip("needs jsonargparse", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("ignore:EarlyStopping monitors 'x'")

DEFAULTS = {
    "max_epochs": 1,
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
NETS = """
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel


class Net(BoringModel):
    def __init__(
        self,
        width: int = 3,
        optimizer: OptimizerCallable = torch.optim.SGD,
        scheduler: LRSchedulerCallable = torch.optim.lr_scheduler.ConstantLR,
    ):
        super().__init__()
        self.width, self.optimizer, self.scheduler = width, optimizer, scheduler

    def configure_optimizers(self):
        optimizer = self.optimizer(self.parameters())
        return {"optimizer": optimizer, "lr_scheduler": self.scheduler(optimizer)}


class Plain(BoringModel):
    def __init__(self, width: int = 3):
        super().__init__()
        self.save_hyperparameters()


class Data(BoringDataModule):
    def __init__(self, batch_size: int = 4):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return torch.utils.data.DataLoader(self.random_train, self.batch_size)
"""


@pytest.fixture
def nets(installed, tmp_path, monkeypatch):
    """Classes of a program, in a module of its own."""
    (tmp_path / "nets_of_cli.py").write_text(NETS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    yield installed("nets_of_cli")
    del sys.modules["nets_of_cli"]


@pytest.fixture
def cli(installed):
    return installed("lightning.pytorch.cli")


def test_arguments_are_linked_and_hooks_are_called(cli, nets, installed, lit):
    callbacks, told = installed("lightning.pytorch.callbacks"), []

    class Own(cli.LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.add_lightning_class_args(callbacks.EarlyStopping, "early")
            parser.set_defaults({"early.monitor": "x", "early.strict": False})
            parser.link_arguments("data.batch_size", "model.width")
            parser.add_argument("--mine", default=3)

        def before_fit(self):
            told.append(self.config.fit.mine)

        def after_fit(self):
            told.append(self.trainer.global_step)

    words = (
        "fit --data.batch_size=8 --model.optimizer=Adam --model.optimizer.lr=0.02 "
        "--seed_everything=3 --mine=x"
    )
    always = callbacks.LearningRateMonitor()
    made = Own(
        nets.Net,
        nets.Data,
        trainer_defaults={**DEFAULTS, "callbacks": [always]},
        args=words.split(),
    )
    assert told == ["x", 8]
    assert (made.model.width, made.subcommand, made.trainer.max_epochs) == (8, "fit", 1)
    assert [type(each).__name__ for each in made.trainer.callbacks] == [
        "EarlyStopping", "LearningRateMonitor", "SaveConfigCallback", "ModelCheckpoint",
    ]  # fmt: skip
    assert lit.total(made.model) == pytest.approx(5.8475990276783705, rel=1e-4)
    saved = yaml.safe_load(Path(made.trainer.log_dir, "config.yaml").read_text(encoding="utf-8"))
    assert (saved["seed_everything"], saved["data"], saved["early"]["monitor"]) == (
        3,
        {"batch_size": 8},
        "x",
    )


def test_classes_are_named_by_their_short_names_in_words_and_files(cli, nets, tmp_path):
    config = {
        "model": {"class_path": "lightning.pytorch.demos.boring_classes.BoringModel"},
        "data": "BoringDataModule",
        "trainer": {
            "max_epochs": 2,
            "callbacks": [
                {"class_path": "EarlyStopping", "init_args": {"monitor": "x", "strict": False}},
                {
                    "class_path": "ModelCheckpoint",
                    "init_args": {"save_last": True, "dirpath": "kept"},
                },
            ],
        },
    }
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    defaults = {**DEFAULTS, "logger": False, "limit_train_batches": 1, "limit_val_batches": 1}
    made = cli.LightningCLI(
        trainer_defaults=defaults, save_config_callback=None, args=["fit", "--config", "my.yaml"]
    )
    assert (made.trainer.global_step, type(made.datamodule).__name__) == (2, "BoringDataModule")
    assert (tmp_path / "kept" / "last.ckpt").is_file()
    words = (
        "--model=BoringModel --trainer.callbacks=EarlyStopping --trainer.callbacks.monitor=x "
        "--trainer.callbacks+ ModelCheckpoint --trainer.callbacks.save_last=true"
    )
    made = cli.LightningCLI(
        trainer_defaults=defaults, save_config_callback=None, args=words.split(), run=False
    )
    callbacks = made.trainer.callbacks
    assert (made.subcommand, callbacks[0].monitor, callbacks[1].save_last) == (None, "x", True)


def test_a_short_name_is_lightnings_here_and_cores_under_cli_for(cli, nets):
    args = [
        "--trainer.callbacks=EarlyStopping",
        "--trainer.callbacks.monitor=x",
        "--trainer.logger=CSVLogger",
    ]
    defaults = {**DEFAULTS, "default_root_dir": "."}
    made = cli.LightningCLI(
        nets.Plain, trainer_defaults=defaults, args=[*args, "--trainer.logger.prefix=p"], run=False
    )

    class Bare(core.Module):
        """A module of core's own."""

    of_core = core.cli_for(
        Bare, trainer_defaults=defaults, args=[*args, "--trainer.logger.save_dir=."], run=False
    )
    for trainer, is_ours in ((made.trainer, True), (of_core.trainer, False)):
        for made_by_name in (trainer.early_stopping_callbacks[0], trainer.logger):
            assert type(made_by_name).__module__.startswith("core_lightning") is is_ours


def test_optimizers_of_the_config_replace_the_modules(cli, nets):
    words = (
        "fit --optimizer=AdamW --optimizer.lr=0.01 --lr_scheduler=ReduceLROnPlateau "
        "--lr_scheduler.monitor=x --trainer.limit_train_batches=2 --trainer.logger=false"
    )
    with pytest.raises(core.ModuleError, match="A scheduler monitors 'x', which was not logged"):
        cli.LightningCLI(nets.Plain, nets.Data, trainer_defaults=DEFAULTS, args=words.split())

    class Own(cli.LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.add_optimizer_args(torch.optim.Adam)
            parser.add_lr_scheduler_args(torch.optim.lr_scheduler.ExponentialLR)

    made = Own(nets.Plain, run=False, args=["--optimizer.lr=0.3", "--lr_scheduler.gamma=0.5"])
    (optimizer,), (scheduler,) = made.model.configure_optimizers()
    assert (type(optimizer), optimizer.defaults["lr"], scheduler.gamma) == (
        torch.optim.Adam,
        0.3,
        0.5,
    )


def test_a_checkpoints_hyperparameters_are_the_modules_arguments(cli, nets):
    defaults = {**DEFAULTS, "limit_train_batches": 1, "limit_val_batches": 1}
    made = cli.LightningCLI(
        nets.Plain, nets.Data, trainer_defaults=defaults, args=["fit", "--model.width=7"]
    )
    path = made.trainer.checkpoint_callback.best_model_path
    words = ["test", "--ckpt_path", path, "--trainer.limit_test_batches=1", "--verbose=false"]
    made = cli.LightningCLI(nets.Plain, nets.Data, trainer_defaults=defaults, args=words)
    assert made.model.hparams == {"width": 7}


def test_a_checkpoint_without_hyperparameters_leaves_the_class_as_it_is(cli, nets):
    saved = {
        "pytorch-lightning_version": "2.6.6",
        "state_dict": nets.Plain().state_dict(),
        "hyper_parameters": {"_instantiator": "lightning.pytorch.cli.instantiate_module"},
        "epoch": 0,
        "global_step": 1,
    }
    torch.save(saved, "their.ckpt")
    words = "test --model=nets_of_cli.Plain --model.width=5 --ckpt_path=their.ckpt --verbose=false"
    defaults = {**DEFAULTS, "logger": False, "limit_test_batches": 1}
    made = cli.LightningCLI(None, nets.Data, trainer_defaults=defaults, args=words.split())
    assert (type(made.model), made.model.hparams) == (nets.Plain, {"width": 5})


def test_a_config_is_never_replaced_and_mistakes_end_before_work(cli, nets, capsys):
    defaults = {**DEFAULTS, "logger": False, "limit_train_batches": 1}
    options = {
        "trainer_defaults": defaults,
        "save_config_kwargs": {"config_filename": "mine.yaml"},
        "args": ["fit"],
    }
    cli.LightningCLI(nets.Plain, nets.Data, **options)
    with pytest.raises(
        core.ConfigurationError, match=r"mine\.yaml holds the config of another run"
    ):
        cli.LightningCLI(nets.Plain, nets.Data, **options)
    with pytest.raises(SystemExit):
        cli.LightningCLI(nets.Plain, nets.Data, args=["fit", "--model.widht=3"])
    assert "widht" in capsys.readouterr().err
    with pytest.raises(ValueError, match="save_to_log_dir=False saves nothing"):
        cli.SaveConfigCallback(None, None, save_to_log_dir=False)
