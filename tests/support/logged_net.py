"""A module that logs, and its data, for the tests of loggers; those of plugins use it too."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from core import Module

OFF = ("enable_progress_bar", "enable_model_summary", "enable_checkpointing")
ON_CPU = {"accelerator": "cpu", "devices": 1, **dict.fromkeys(OFF, False)}


class Net(Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        self.log("batch_idx", float(batch_idx))
        self.log("unseen", 1.0, logger=False)
        return self.layer(batch[0]).sum()

    def validation_step(self, batch, batch_idx):
        self.log("val", 2.0)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(num_batches=4):
    return DataLoader(TensorDataset(torch.ones(2 * num_batches, 4)), batch_size=2)
