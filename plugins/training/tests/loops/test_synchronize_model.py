"""When a strategy whose ranks go their own ways is told to bring them together."""

import pytest
import torch

from core import Fabric
from core.callbacks import LambdaCallback
from core.strategies import SingleDeviceStrategy
from support.small_nets import At, Net, batches, fit, quiet_trainer


@pytest.fixture
def events():
    return []


@pytest.fixture
def strategy(events):
    class Noting(SingleDeviceStrategy):
        def synchronize_model(self):
            events.append("synchronize")

    return Noting()


@pytest.fixture
def notes(events):
    return LambdaCallback(
        on_train_batch_end=lambda *_: events.append("step"),
        on_validation_start=lambda *_: events.append("validation"),
        on_save_checkpoint=lambda *_: events.append("save"),
        on_train_end=lambda *_: events.append("end"),
    )


def test_before_validation_and_when_training_ends_and_before_a_late_checkpoint(
    events, strategy, notes, tmp_path
):
    class Validated(Net):
        def validation_step(self, batch, batch_idx):
            self.log("mean", batch.mean())

    trainer = fit(Validated(), batches(2), batches(1), strategy=strategy, callbacks=notes)
    assert events == ["step", "step", "synchronize", "validation", "synchronize", "end"]
    trainer.save_checkpoint(tmp_path / "late.ckpt")
    assert events[6:] == ["synchronize", "save"]


def test_callbacks_write_what_holds_afterwards(events, strategy, notes, tmp_path):
    saves = At(
        "on_train_batch_end", lambda module: module.trainer.save_checkpoint(tmp_path / "now.ckpt")
    )
    quiet_trainer(strategy=strategy, callbacks=[saves, notes], max_steps=1).fit(Net(), batches(2))
    assert events == ["synchronize", "save", "step", "synchronize", "end"]


def test_before_a_checkpoint_of_fabric(events, strategy, tmp_path):
    fabric = Fabric(strategy=strategy, accelerator="cpu")
    fabric.save(tmp_path / "model.ckpt", {"model": fabric.setup(torch.nn.Linear(1, 1))})
    assert events == ["synchronize"]
