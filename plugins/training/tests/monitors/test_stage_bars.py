"""Bars that tqdm draws, and columns of rich: made, advanced and closed at the hooks of each
stage.
"""

import re

import pytest
import torch
from rich.progress import TextColumn

from core_training.monitors.columns_progress_bar import ColumnsProgressBar
from core_training.monitors.tqdm_progress_bar import TQDMProgressBar
from support.small_nets import Net, quiet_trainer

pytest.importorskip("tqdm")


class Logging(Net):
    def training_step(self, batch, batch_idx):
        self.log("shown", 1.5, prog_bar=True)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        pass

    def predict_step(self, batch):
        return batch

    test_step = validation_step


def run_all(bar):
    trainer = quiet_trainer(
        max_epochs=1, callbacks=[bar], enable_progress_bar=True, num_sanity_val_steps=1
    )
    net, loader = Logging(), torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
    trainer.fit(net, loader, [loader, loader])
    trainer.validate(net, loader, verbose=False)
    trainer.test(net, loader, verbose=False)
    trainer.predict(net, loader)


def test_each_stage_has_a_bar_of_tqdm(capsys):
    class Mine(TQDMProgressBar):
        def init_train_tqdm(self):
            made.append(super().init_train_tqdm())
            return made[0]

    made = []
    run_all(Mine())
    lines = re.split(r"[\r\n]+", capsys.readouterr().out)
    for text in (
        "Sanity Checking DataLoader 1: 100%|##########| 1/1",
        "Epoch 0: 100%|##########| 4/4",
        "Validation DataLoader 1: 100%|##########| 4/4",
        "Testing DataLoader 0: 100%|##########| 4/4",
        "Predicting DataLoader 0: 100%|##########| 4/4",
    ):
        assert any(text in line.replace("█", "#") for line in lines), text
    assert any("shown=1.5" in line for line in lines)
    assert made[0].disable, "closed"


def test_columns_of_a_subclass_are_drawn(capsys):
    class Mine(ColumnsProgressBar):
        def configure_columns(self, trainer):
            return [TextColumn("mine {task.description} {task.completed} of {task.total}")]

    run_all(Mine())
    shown = capsys.readouterr().out
    assert "mine Epoch 0 4 of 4 shown: 1.5" in shown
    assert "mine Predicting DataLoader 0 4 of 4" in shown
