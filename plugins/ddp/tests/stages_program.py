"""fit, validate and test in one `ddp` script; or an end by force in the middle of an epoch.

python stages_program.py WHAT FOLDER
"""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer


class Net(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).pow(2).mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_mean", batch[0].mean())
        self.log("val_count", float(len(batch[0])), reduce_fx="sum")

    def test_step(self, batch, batch_idx):
        self.log("test_count", float(len(batch[0])), reduce_fx="sum")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Disturbance(Callback):
    """Does something to rank 1 in its third batch, while rank 0 waits for it."""

    def __init__(self, what, folder):
        self.what, self.folder = what, Path(folder)

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == 0:  # once: a rank that is ended while it writes would leave an empty file
            (self.folder / f"pid-{trainer.global_rank}").write_text(str(os.getpid()))
        if batch_idx == 2 and trainer.global_rank == 1:
            if self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.what == "raise":
                raise ValueError("rank 1 has had enough")

    def on_exception(self, trainer, module, exception):
        (self.folder / f"exception-{trainer.global_rank}").write_text(type(exception).__name__)

    def teardown(self, trainer, module, stage):
        (self.folder / f"teardown-{trainer.global_rank}").touch()


class Beginning(Callback):
    def on_train_start(self, trainer, module):
        print("a run of one process begins", flush=True)


def main():
    what, folder = sys.argv[1:3]
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    data = DataLoader(TensorDataset(torch.arange(44.0).view(11, 4)), batch_size=2)
    options = {"strategy": "ddp", "accelerator": "cpu", "devices": 2, **quiet}
    alone = {**options, "strategy": "single_device", "devices": 1}
    if what == "alone-before":
        Trainer(**alone).validate(Net(), data)
    if what == "stages":
        trainer = Trainer(**options, max_epochs=1)
        module = Net()
        trainer.fit(module, data, data)
        fitted = dict(trainer.callback_metrics)
        validated = trainer.validate(module, data)
        tested = Trainer(**options).test(module, data)
        if trainer.is_global_zero:
            print(sorted((name, value.item()) for name, value in fitted.items()), validated, tested, flush=True)
            print("rank 0 alone", Trainer(**alone).test(module, data), flush=True)
        Trainer(**{**options, "devices": 3}).validate(module, data)
    elif what.startswith("alone"):
        module = Net()
        Trainer(**options, max_epochs=1).fit(module, data)
        Trainer(**alone, max_epochs=1, callbacks=Beginning()).fit(module, data)
    else:
        trainer = Trainer(**options, max_epochs=1, callbacks=Disturbance(what, folder))
        trainer.fit(Net(), data)


if __name__ == "__main__":
    main()
