"""Where the time goes. Parts are slept, so that each is at least so long, whatever the load."""

import csv
import re
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from core.callbacks import Callback, Goodput, MemoryCheckpoint, ModelCheckpoint, SpikeGuard
from core.checkpoint import TorchCheckpointIO
from core.loggers import CSVLogger
from support.tiny import Tiny, loader, make_trainer

PARTS = ["useful", "start", "data", "validation", "saves", "skipped", "lost"]
NAP_S = 0.05


class SlowData(Dataset):
    """Four samples, the second of which is bad."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        time.sleep(NAP_S)
        return (torch.full((2,), float("nan") if index == 1 else 1.0),)


class SlowSteps(Tiny):
    def training_step(self, batch, batch_idx):
        time.sleep(NAP_S)
        return self(batch[0]).square().mean()

    def validation_step(self, batch, batch_idx):
        time.sleep(4 * NAP_S)


class SlowIO(TorchCheckpointIO):
    def save_checkpoint(self, *args, **options):
        time.sleep(4 * NAP_S)
        return super().save_checkpoint(*args, **options)


def fit(tmp_path, goodput, ckpt_path=None, **options):
    callbacks = [
        goodput,
        SpikeGuard(),
        ModelCheckpoint(
            dirpath=tmp_path, filename="one", every_n_train_steps=2, save_on_train_epoch_end=False
        ),
    ]
    trainer = make_trainer(
        tmp_path, *callbacks, **{"max_epochs": 1, "plugins": [SlowIO()], **options}
    )
    validation = DataLoader(torch.ones(1, 1, 2))
    with pytest.warns(UserWarning, match="SpikeGuard skips"):
        trainer.fit(SlowSteps(), DataLoader(SlowData()), validation, ckpt_path=ckpt_path)
    return trainer


def test_each_part_is_measured(tmp_path):
    goodput, began_s = Goodput(), time.monotonic()
    fit(tmp_path, goodput)
    passed_s, seconds = time.monotonic() - began_s, goodput.seconds
    assert list(seconds) == PARTS
    assert seconds["useful"] >= 3 * NAP_S
    assert seconds["skipped"] >= NAP_S
    assert seconds["data"] >= 2 * NAP_S  # the first is of the start, and one comes after a save
    assert seconds["validation"] >= 4 * NAP_S
    assert seconds["saves"] >= 4 * NAP_S
    assert seconds["start"] >= NAP_S
    assert seconds["lost"] == 0
    # All but the time of this test's process before counts once.
    assert sum(seconds.values()) - seconds["start"] <= passed_s
    assert sum(goodput.shares.values()) == pytest.approx(1)


def test_a_run_that_goes_on_counts_what_it_lost(tmp_path):
    goodput, began_s = Goodput(), time.time()
    fit(tmp_path, goodput)
    first, ended_s = dict(goodput.seconds), time.time()
    time.sleep(2 * NAP_S)
    went_on_s = time.time()
    fit(tmp_path, goodput, ckpt_path=tmp_path / "one.ckpt", max_epochs=2)
    seconds = goodput.seconds
    assert seconds["lost"] >= 4 * NAP_S  # the save, what followed it, and what came between
    assert seconds["useful"] >= (2 + 1 + 3) * NAP_S
    # The step after the save is lost, and nothing counts twice.
    assert (
        went_on_s - ended_s <= sum(seconds.values()) - sum(first.values()) <= time.time() - began_s
    )


def test_the_process_counts_from_its_start_to_the_first_fit(tmp_path):
    """Whatever stage came before, and a state has what is running."""
    goodput = Goodput()

    class Ask(Callback):
        def __init__(self, goodput):
            self.goodput = goodput

        def on_fit_start(self, trainer, module):
            self.seconds = self.goodput.state_dict()["seconds"]

    ask, options = Ask(goodput), {"max_epochs": 1, "limit_val_batches": 1}
    make_trainer(tmp_path, goodput, **options).validate(Tiny(), loader(), verbose=False)
    began_s = time.monotonic()
    before_s = time.monotonic() - began_s
    make_trainer(tmp_path, goodput, ask, **options).fit(Tiny(), loader(), loader())
    assert ask.seconds["start"] >= before_s
    assert goodput.seconds["start"] >= ask.seconds["start"]


def test_the_first_fetch_of_an_epoch_belongs_to_no_save(tmp_path):
    goodput = Goodput()
    trainer = make_trainer(
        tmp_path, goodput, ModelCheckpoint(dirpath=tmp_path), max_epochs=2, limit_val_batches=0
    )
    trainer.fit(Tiny(), DataLoader(torch.utils.data.Subset(SlowData(), [0])))
    assert goodput.seconds["data"] >= NAP_S  # of the second epoch; the first is of the start


def test_shares_are_logged_and_printed(tmp_path, capsys):
    logger = CSVLogger(tmp_path)
    trainer = fit(tmp_path, Goodput(), logger=logger, log_every_n_steps=2)
    rows = list(
        csv.DictReader(
            (Path(trainer.log_dir) / "metrics.csv").read_text(encoding="utf-8").splitlines()
        )
    )
    logged = [row for row in rows if row["goodput/useful"]]
    assert [row["step"] for row in logged] == ["2", "3"]  # the last one when fit has ended
    for row in logged:
        assert sum(float(row[f"goodput/{part}"]) for part in PARTS) == pytest.approx(1)
    share = r"\d+\.\d%"
    assert re.search(
        # without parts that round to 0
        rf"^Goodput {share} of \d+\.\d s; start {share}(, [a-z]+ {share})*\.$",
        capsys.readouterr().out,
        re.M,
    )


def test_steps_that_are_done_again_are_lost_and_no_second_counts_twice(tmp_path, capsys):
    goodput, memory = Goodput(verbose=False), MemoryCheckpoint(folder=tmp_path, keep=3)

    class BackOnce(Callback):
        """Goes back once, after the third step to the first."""

        def __init__(self, memory):
            self.memory, self.asked = memory, False

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.global_step == 3 and not self.asked:
                self.asked = True
                self.memory.go_back(trainer, 1)

    trainer = make_trainer(
        tmp_path, goodput, memory, BackOnce(memory), max_epochs=1, limit_val_batches=0
    )
    began_s = time.monotonic()
    trainer.fit(SlowSteps(), DataLoader(torch.ones(4, 1, 2)))
    took_s, start_s = time.monotonic() - began_s, goodput.seconds["start"]
    assert goodput.seconds["lost"] >= 2 * NAP_S
    assert goodput.seconds["useful"] >= 4 * NAP_S
    assert sum(goodput.seconds.values()) - start_s <= took_s
    assert "Goodput" not in capsys.readouterr().out, "it isn't verbose"
