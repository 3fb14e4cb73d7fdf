"""When a strategy whose ranks go their own ways is told to bring them together."""

import torch

from core import Callback, Fabric, Trainer
from core.strategies import SingleDeviceStrategy
from support.small_nets import QUIET, Net, batches


class Notes(Callback):
    def __init__(self):
        self.events = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.events.append("step")

    def on_validation_start(self, trainer, module):
        self.events.append("validation")

    def on_save_checkpoint(self, trainer, module, checkpoint):
        self.events.append("save")

    def on_train_end(self, trainer, module):
        self.events.append("end")


class Noting(SingleDeviceStrategy):
    def __init__(self, events, **parts):
        super().__init__(**parts)
        self.events = events

    def synchronize_model(self):
        self.events.append("synchronize")


class Validated(Net):
    def validation_step(self, batch, batch_idx):
        self.log("mean", batch.mean())


def fitted(**options):
    notes = Notes()
    trainer = Trainer(**{**QUIET, "strategy": Noting(notes.events), "callbacks": notes, "max_epochs": 1, **options})
    trainer.fit(Validated(), batches(2), batches(1))
    return trainer, notes.events


def test_before_validation_and_when_training_ends():
    assert fitted()[1] == ["step", "step", "synchronize", "validation", "synchronize", "end"]


def test_when_a_limit_in_steps_ends_training():
    assert fitted(max_steps=1)[1] == ["step", "synchronize", "end"]


def test_before_a_checkpoint_of_the_trainer(tmp_path):
    trainer, events = fitted()
    del events[:]
    trainer.save_checkpoint(tmp_path / "late.ckpt")
    assert events[:1] == ["synchronize"]


def test_callbacks_write_what_holds_afterwards(tmp_path):
    class Saves(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            trainer.save_checkpoint(tmp_path / "now.ckpt")

    notes = Notes()
    trainer = Trainer(**{**QUIET, "strategy": Noting(notes.events), "callbacks": [Saves(), notes], "max_steps": 1})
    trainer.fit(Net(), batches(2))
    assert notes.events == ["synchronize", "save", "step", "synchronize", "end"]


def test_before_a_checkpoint_of_fabric(tmp_path):
    events = []
    fabric = Fabric(strategy=Noting(events), accelerator="cpu")
    fabric.save(tmp_path / "model.ckpt", {"model": fabric.setup(torch.nn.Linear(1, 1))})
    assert events == ["synchronize"]
