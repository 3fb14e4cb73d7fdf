"""fit, validate and test in one `fsdp` script.

python stages_program.py STRATEGY
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer


class Net(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        return self.layers(batch[0]).pow(2).mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layers(batch[0]).pow(2).mean())

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.layers(batch[0]).pow(2).mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)


def main():
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    data = DataLoader(TensorDataset(torch.arange(48.0).view(12, 4) / 10), batch_size=3)
    options = {"strategy": sys.argv[1], "accelerator": "cpu", "devices": 2, **quiet}
    trainer = Trainer(**options, max_epochs=1)
    module = Net()
    trainer.fit(module, data, data)
    fitted = trainer.callback_metrics["val_loss"].item()
    validated = trainer.validate(module, data)[0]["val_loss"]
    tested = Trainer(**options).test(module, data)[0]["test_loss"]
    Trainer(**options, max_epochs=1).fit(module, data)
    again = trainer.validate(module, data)[0]["val_loss"]
    if trainer.is_global_zero:
        patched = sorted(vars(module).keys() & {"training_step", "validation_step", "test_step"})
        print([round(value, 5) for value in (fitted, validated, tested)], again != validated, patched)


if __name__ == "__main__":
    main()
