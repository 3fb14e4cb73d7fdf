"""The report on a program before it is run."""

import subprocess
import sys

from core_lightning.explaining import explain

PROGRAM = """
import lightning as L
import pytorch_lightning.callbacks as cb
import torch
from lightning.pytorch.callbacks import EarlyStopping, SpikeDetection
from helpers import make


class Net(L.LightningModule):
    pass


trainer = L.Trainer(max_epochs=1, max_epoch=2, callbacks=[cb.ModelCheckpoint(), cb.Nothing.of(3)])
print(L.pytorch.loggers.CSVLogger, L.fabric.plugins.nothing, torch.nn.Linear, trainer.anything)
"""


def test_names_that_are_missing_are_listed_where_they_stand(tmp_path):
    script, helpers = tmp_path / "train.py", tmp_path / "helpers.py"
    script.write_text(PROGRAM, encoding="utf-8")
    helpers.write_text("from lightning.pytorch.serve import ServableModuleValidator\n", encoding="utf-8")
    text, is_whole = explain(script)
    assert not is_whole
    *lines, verdict = text.splitlines()
    assert sorted(lines) == sorted(
        [
            f"{script}:5: core-lightning has no lightning.pytorch.callbacks.SpikeDetection",
            f"{script}:13: core-lightning has no Trainer(max_epoch=)",
            f"{script}:13: core-lightning has no lightning.pytorch.callbacks.Nothing",
            f"{script}:14: core-lightning has no lightning.fabric.plugins.nothing",
            f"{helpers}:1: core-lightning has no lightning.pytorch.serve.ServableModuleValidator",
        ]
    )
    assert verdict.startswith("9 of Lightning's names that ")
    assert verdict.endswith(" are there, and 5 are not. docs/lightning.md says what there is.")


def test_core_run_reports_and_runs_nothing(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("from lightning.pytorch import Trainer\nraise SystemExit(7)\n", encoding="utf-8")
    command = [sys.executable, "-m", "core", "run", "--lightning", "--explain", script.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1 of Lightning's names that train.py uses are there.\n"), done.stderr
    command.remove("--lightning")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "--explain needs a prelude" in done.stderr) == (2, True)
