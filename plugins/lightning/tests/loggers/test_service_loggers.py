"""The loggers of services under Lightning's arguments, with the real libraries and nothing sent."""

import importlib.util
import os
import sys

import pytest

import core
from core_testing import programs

NEEDS_WANDB = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="pip install wandb"
)
NEEDS_MLFLOW = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="pip install mlflow-skinny"
)


@pytest.mark.slow
@NEEDS_WANDB
def test_a_program_with_images_text_and_a_watched_model_runs_on_wandb(tmp_path):
    WANDB = """
import pathlib, torch, core_lightning
core_lightning.install()
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        self.logger.log_image("pictures", [torch.rand(3, 4, 4).numpy().transpose(1, 2, 0)] * 2, caption=["a", "b"])
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

logger = WandbLogger("a run", project="a project", prefix="own", offline=True)
trainer = Trainer(accelerator="cpu", max_epochs=1, logger=logger, log_every_n_steps=1, enable_progress_bar=False)
net = Net()
logger.watch(net, log="all", log_freq=1)
trainer.fit(net, torch.utils.data.DataLoader(torch.randn(4, 2), batch_size=2))
logger.log_text("words", columns=["of"], data=[["a"], ["b"]])
run = logger.experiment
print(run.project, run.name, logger.name == run.project, logger.version == run.id, logger.save_dir)
media = pathlib.Path(run.dir, "media")
print(len(list(media.rglob("*.png"))), len(list(media.rglob("*.table.json"))), "own-loss" in run.summary.keys())
best = pathlib.Path(trainer.checkpoint_callback.best_model_path)
print(best.parent.parts[-3:] == ("a project", run.id, "checkpoints"))
print([name for name in run.summary.keys() if name.startswith(("gradients", "parameters"))])
"""
    quiet = {
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_X_SAVE_REQUIREMENTS": "false",
    }
    # else in the home
    folders = {f"WANDB_{each}_DIR": str(tmp_path / each) for each in ("CACHE", "CONFIG", "DATA")}
    command = [sys.executable, "-W", "ignore", "-c", WANDB]
    environment = {**os.environ, **quiet, **folders}
    done = programs.run(command, cwd=tmp_path, env=environment, timeout=120, preload="wandb,torch")
    assert done.returncode == 0, done.stderr
    project, media, folder, watched = done.stdout.strip().splitlines()[-4:]
    assert project == "a project a run True True ."
    assert media == "2 1 True"  # two equal pictures a step are one file
    assert folder == "True"
    assert "gradients/own" in watched or "gradients/layer.weight" in watched


@NEEDS_WANDB
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"offline": True, "log_model": "all"}, "a run that is offline can't send checkpoints"),
        ({"anonymous": True}, "no anonymous runs"),
    ],
)
def test_arguments_of_wandb_that_contradict_each_other_are_refused(lit, options, message):
    with pytest.raises(core.ConfigurationError, match=message):
        lit.pl.loggers.WandbLogger(**options)


@NEEDS_MLFLOW
@pytest.mark.parametrize(("when", "at_once"), [("all", ["best"]), (True, [])])
def test_checkpoints_go_to_mlflow_at_the_end_or_at_once(lit, tmp_path, monkeypatch, when, at_once):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    saved = lit.pl.callbacks.ModelCheckpoint(tmp_path)
    (tmp_path / "best.ckpt").write_bytes(b"weights")
    saved.best_model_path = tmp_path / "best.ckpt"
    options = {"tracking_uri": (tmp_path / "store").as_uri(), "prefix": "own", "synchronous": True}
    logger = lit.pl.loggers.MLFlowLogger("runs", log_model=when, **options)
    logger.log_metrics({"loss": 1.5, "name": "text"})
    client, run = logger.experiment, logger.run_id
    assert client.get_metric_history(run, "own-loss")[0].value == 1.5
    assert (logger.name, logger.version) == (logger.experiment_id, run)
    logger.after_save_checkpoint(saved)
    assert [item.path for item in client.list_artifacts(run)] == at_once
    logger.after_save_checkpoint(saved)  # has been sent, and hasn't changed
    logger.finalize("success")
    assert [item.path for item in client.list_artifacts(run)] == ["best"]
    names = [item.path for item in client.list_artifacts(run, "best")]
    assert names == ["best/aliases.txt", "best/best.ckpt", "best/metadata.yaml"]
    assert client.get_run(run).info.status == "FINISHED"


@NEEDS_MLFLOW
def test_a_new_experiment_of_mlflow_has_its_place_for_artifacts(lit, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    place = (tmp_path / "artifacts").as_uri()
    logger = lit.pl.loggers.MLFlowLogger("placed", save_dir="store", artifact_location=place)
    assert logger.experiment.get_experiment(logger.experiment_id).artifact_location == place
    assert logger.save_dir == "store"


def test_a_logger_of_the_programs_own_saves_after_each_record_and_hears_of_checkpoints(lit):
    calls = []

    class Own(lit.pl.loggers.Logger):
        def log_metrics(self, metrics, step):
            calls.append("log")

        def save(self):
            calls.append("save")

        def after_save_checkpoint(self, checkpoint_callback):
            calls.append(os.path.exists(checkpoint_callback.best_model_path))

    lit.fit(lit.Plain(), max_steps=2, log_every_n_steps=1, logger=Own(), enable_checkpointing=True)
    assert calls[:4] == ["log", "save"] * 2
    assert calls.count(True) == 1
    assert False not in calls
