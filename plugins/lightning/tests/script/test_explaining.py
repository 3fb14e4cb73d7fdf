"""The report on a program before it is run."""

import explained
import pytest
from click.testing import CliRunner

from core.cli.commands import command
from core_lightning.script.explaining import explain


def test_what_is_missing_is_listed_where_it_stands(tmp_path):
    PROGRAM = """
import lightning as L
import pytorch_lightning.callbacks as cb
import torch
from lightning.pytorch.callbacks import EarlyStopping, SpikeDetection
from helpers import make


class Net(L.LightningModule):
    def configure_sharded_model(self):
        self.helper()


trainer = L.Trainer(max_epochs=1, max_epoch=2, callbacks=[cb.ModelCheckpoint(), cb.Nothing.of(3)])
print(L.pytorch.loggers.CSVLogger, L.fabric.plugins.nothing, torch.nn.Linear, trainer.anything, trainer.callbacks)
trainer.fit_loop = trainer.is_last_batch = SpikeDetection()
"""
    script, helpers = tmp_path / "train.py", tmp_path / "helpers.py"
    script.write_text(PROGRAM, encoding="utf-8")
    helpers.write_text("from lightning.pytorch.serve import Nothing\n", encoding="utf-8")
    text, runs = explain(script)
    assert not runs
    *lines, verdict = text.splitlines()
    expected = [
        f"{helpers}:1: core-lightning has no lightning.pytorch.serve.Nothing",
        f"{script}:10: nothing calls configure_sharded_model here: not called, with a warning",
        f"{script}:11: core-lightning's LightningModule has no helper",
        f"{script}:14: core-lightning has no Trainer(max_epoch=)",
        f"{script}:14: core-lightning has no lightning.pytorch.callbacks.Nothing",
        f"{script}:15: core-lightning has no lightning.fabric.plugins.nothing",
        f"{script}:15: core-lightning's Trainer has no anything",
        f"{script}:16: SpikeDetection is not on core, and making one is an error",
        f"{script}:16: Trainer.is_last_batch can't be set here",
    ]
    assert len(lines) == len(expected)
    assert all(map(str.startswith, sorted(lines), sorted(expected))), lines
    assert verdict == f"{script}: fails at helpers.py:1"


@pytest.mark.parametrize("name", explained.PROGRAMS)
def test_a_program_gets_the_verdict_that_it_has_shown(tmp_path, name):
    verdict, source = explained.PROGRAMS[name]
    script = tmp_path / "train.py"
    script.write_text(source, encoding="utf-8")
    text, runs = explain(script)
    assert text.splitlines()[-1].startswith(f"{script}: {verdict}"), text
    assert runs == (verdict != explained.FAILS)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--lightning", "--explain"], 0, "train.py: runs equal\n"),
        (["--explain"], 2, "--explain needs a prelude"),
    ],
)
def test_core_run_reports_and_runs_nothing(tmp_path, monkeypatch, options, code, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "from lightning.pytorch import Trainer\nraise SystemExit(7)\n", encoding="utf-8"
    )
    done = CliRunner().invoke(command, ["run", *options, "train.py"])
    assert (done.exit_code, said in done.output) == (code, True), done.output


def test_a_class_whose_package_is_not_installed_is_not_called_refused(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from lightning.pytorch.loggers import CometLogger\n"
        "from lightning.pytorch.strategies import DeepSpeedStrategy\n"
        "logger, strategy = CometLogger(), DeepSpeedStrategy(stage=2)\n",
        encoding="utf-8",
    )
    assert explain(script) == (f"{script}: runs equal", True)


def test_arguments_that_are_not_taken_by_position_are_reported(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from lightning.pytorch import Trainer\n"
        "from lightning.pytorch.tuner import Tuner\n"
        "tuner = Tuner(Trainer(max_epochs=1))\n"
        "options = []\n"
        "tuner.lr_find(None, *options)\n"
        "tuner.lr_find(None, None, None, None, None, 'fit', 1e-6, *options)\n"
        "Trainer('cpu')\n",
        encoding="utf-8",
    )
    text, runs = explain(script)
    assert not runs
    said = "too many positional arguments"
    assert text.splitlines()[:-1] == [
        f"{script}:6: core-lightning's Tuner.lr_find: {said}",
        f"{script}:7: core-lightning's Trainer: {said}",
    ]
