"""The smallest module that trains, with validation losses that a test prescribes. Workers import it
too.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer


class Tiny(Module):
    """Logs `train_loss` and `val_loss`; the latter is the next of `val_losses`, if there are
    any.
    """

    def __init__(self, val_losses=(), lr=0.1):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(2, 1)
        self.val_losses = list(val_losses)
        self.lr = lr
        self.num_validations = 0

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, batch_idx):
        loss = self(batch[0]).square().mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        value = self(batch[0]).square().mean()
        if self.val_losses:
            value = self.val_losses[min(self.num_validations, len(self.val_losses) - 1)]
        self.log("val_loss", value, prog_bar=True)

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self(batch[0]).square().mean())

    def on_validation_end(self):
        self.num_validations += not self.trainer.sanity_checking

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def loader(num_samples=8, batch_size=2):
    """By default four batches."""
    generator = torch.Generator().manual_seed(1)
    return DataLoader(
        TensorDataset(torch.randn(num_samples, 2, generator=generator)), batch_size=batch_size
    )


def make_trainer(root, *callbacks, **options):
    """On the CPU, quiet, writing to `root` only."""
    defaults = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": root,
    }
    return Trainer(callbacks=list(callbacks), **{**defaults, **options})
