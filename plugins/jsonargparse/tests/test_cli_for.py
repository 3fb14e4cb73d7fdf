"""A command line made of the types of a module and a data module."""

import pickle

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from core import ConfigurationError, DataModule, Module, cli_for

QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "max_epochs": 2,
}
SGD = [
    "--optimizer=SGD",
    "--optimizer.lr=0.1",
    "--lr_scheduler=StepLR",
    "--lr_scheduler.step_size=1",
]


class Points(DataModule):
    def __init__(self, batch_size: int = 4, num_classes: int = 3):
        super().__init__()
        self.batch_size, self.num_classes = batch_size, num_classes

    def train_dataloader(self):
        points = torch.randn(16, 2, generator=torch.Generator().manual_seed(1))
        return DataLoader(
            TensorDataset(points, torch.arange(16) % self.num_classes), self.batch_size
        )

    val_dataloader = predict_dataloader = train_dataloader


class Net(Module):
    """A classifier.

    Args:
        width: of the hidden layer.
        num_classes: of the data.
    """

    def __init__(self, width: int = 4, num_classes: int = 2):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(2, width), torch.nn.Linear(width, num_classes)
        )

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    def predict_step(self, batch, batch_idx):
        return self.layers(batch[0])


class Own(Net):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def link(parser):
    parser.link_arguments("data.num_classes", "model.num_classes")


@pytest.fixture
def run(tmp_path):
    def call(*args, **options):
        defaults = {**QUIET, "default_root_dir": str(tmp_path)}
        given = {
            "module": Net,
            "datamodule": Points,
            "configure": link,
            "trainer_defaults": defaults,
            **options,
        }
        return cli_for(args=args, **given)

    return call


def test_a_saved_config_is_the_run(run, tmp_path):
    own = (
        "--model.width=5",
        "--trainer.check_val_every_n_epoch=null",
        "--trainer.val_check_interval=2",
    )
    stops = ("--trainer.callbacks=EarlyStopping", "--trainer.callbacks.monitor=val_loss")
    first = run("fit", *SGD, *own, *stops, "--trainer.callbacks+=LearningRateMonitor")
    assert first.module.layers[0].out_features == 5
    assert first.module.layers[1].out_features == 3, "linked to the data's"
    assert [type(callback).__name__ for callback in first.trainer.callbacks][:2] == [
        "EarlyStopping",
        "LearningRateMonitor",
    ]
    assert first.trainer.callback_metrics["lr-SGD"] == pytest.approx(0.01)
    path = tmp_path / "core_logs" / "version_0" / "config.yaml"
    again = run("fit", f"--config={path}")
    assert (path.parents[1] / "version_1" / "config.yaml").read_text() == path.read_text()
    assert again.trainer.options == first.trainer.options
    assert all(map(torch.equal, again.module.parameters(), first.module.parameters()))
    copied = pickle.loads(pickle.dumps(first.module))
    groups = copied.configure_optimizers()["optimizer"].param_groups
    assert groups[0]["params"][0] is next(copied.parameters()), "as for ranks that are spawned"
    # The same file serves the other stages; nothing is saved by them.
    checkpoint = first.trainer.checkpoint_callbacks[0].best_model_path
    predicted = run(
        "predict", f"--config={path}", f"--ckpt_path={checkpoint}", "--seed_everything=7"
    ).result
    points = next(iter(Points(16).train_dataloader()))[0]
    torch.testing.assert_close(torch.cat(predicted), first.module.layers(points))
    assert set(run("validate", f"--config={path}", f"--ckpt_path={checkpoint}").result[0]) == {
        "val_loss"
    }
    assert len(list(tmp_path.rglob("config.yaml"))) == 2


def test_a_config_is_saved_in_a_folder_that_a_url_names(run, tmp_path):
    folder = tmp_path / "a b"
    folder.mkdir()
    run("fit", *SGD, "--trainer.logger=false", f"--trainer.default_root_dir={folder.as_uri()}")
    assert (folder / "config.yaml").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a b"]


@pytest.mark.slow
def test_a_config_is_never_lost(run, tmp_path):
    """Not for another run in its folder, and not when the run goes on; not on two ranks."""
    plain = (
        "--trainer.logger=false",
        "--trainer.strategy=ddp_fork",
        "--trainer.devices=2",
        "--trainer.max_epochs=1",
    )
    run("fit", *SGD, *plain, "--data.batch_size=2")
    text = (tmp_path / "config.yaml").read_text()
    assert "logger: false" in text
    other = (
        "fit",
        *SGD,
        *plain,
        "--data.batch_size=4",
        "--trainer.strategy=auto",
        "--trainer.devices=1",
    )
    with pytest.raises(ConfigurationError, match=r"config.yaml holds the config of another run"):
        run(*other)
    checkpoint = next(tmp_path.rglob("*.ckpt"))
    run(*other, f"--ckpt_path={checkpoint}", "--trainer.max_epochs=2")
    assert (tmp_path / "config.yaml").read_text() == text
    assert "max_epochs: 2" in (tmp_path / "config_1.yaml").read_text()
    run(*other, overwrite_config=True)
    assert "batch_size: 4" in (tmp_path / "config.yaml").read_text()
    run(*other, "--trainer.fast_dev_run=true")
    assert len(list(tmp_path.glob("config*"))) == 2


def test_a_seed_that_is_only_asked_for_is_zero(run):
    run("--seed_everything=true", run=False)
    assert torch.initial_seed() == 0


def test_classes_by_dotted_name(run):
    name = f"{__name__}.Own"
    made = run(f"--model={name}", "--model.width=3", f"--data={__name__}.Points", module=None, datamodule=None,
               configure=None, run=False)  # fmt: skip
    assert type(made.module) is Own
    assert made.module.layers[0].out_features == 3
    assert type(made.datamodule) is Points
    assert made.result is None
    without = run(
        f"--model={name}", module=Net, datamodule=None, subclasses=True, configure=None, run=False
    )
    assert without.datamodule is None


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fit", "--model.widht=3"], "unrecognized arguments: --model.widht"),
        (["fit", "--model.widt=3"], "unrecognized arguments: --model.widt"),
        (["fit", "--trainer.max_epoch=3"], "unrecognized arguments: --trainer.max_epoch"),
        (["fit", "--trainer.max_epochs=two"], "trainer.max_epochs"),
        (["train"], "invalid choice|expected"),
        (["fit", "--optimizer=SGDD"], "SGDD"),
    ],
)
def test_mistakes_end_before_work(run, tmp_path, capsys, args, message):
    with pytest.raises(SystemExit) as ended:
        run(*args)
    assert ended.value.code == 2
    text = capsys.readouterr().err
    assert message.split("|")[0] in text or message.split("|")[-1] in text
    assert len(text.splitlines()) < 90
    assert list(tmp_path.iterdir()) == []


def test_optimizers_that_cannot_be(run):
    named = ("fit", f"--model={__name__}.Own", *SGD)
    with pytest.raises(ConfigurationError, match="Own makes its own in configure_optimizers"):
        run(*named, subclasses=True, datamodule=None, configure=None)
    with pytest.raises(ConfigurationError, match="an lr_scheduler without an optimizer"):
        run("fit", *SGD[2:])


def test_help_tells_what_docstrings_say(run, capsys):
    with pytest.raises(SystemExit):
        run("fit", "--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "--model.width WIDTH of the hidden layer. (type: int, default: 4)" in text
    assert "stop after this many epochs" in text
