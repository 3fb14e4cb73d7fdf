"""A module, its data and a trainer, for the tests of profilers."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer


class Net(Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        with self.trainer.profile("augment"):
            batch = 2 * batch[0]
        return self.layer(batch).sum()

    def on_train_batch_start(self, batch, batch_idx):
        pass

    def validation_step(self, batch, batch_idx):
        self.log("val", self.layer(batch[0]).sum())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Listener(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        pass


class Trouble(Callback):
    def on_after_backward(self, trainer, module):
        raise RuntimeError("mine")


def loader(num_batches=4):
    return DataLoader(TensorDataset(torch.ones(2 * num_batches, 4)), batch_size=2)


def make_trainer(folder, profiler, **options):
    off = ("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger")
    chosen = {"max_epochs": 1, **dict.fromkeys(off, False), **options}
    return Trainer(accelerator="cpu", default_root_dir=folder, profiler=profiler, **chosen)
