"""A network and its data, trained on any strategy; programs of these tests import it."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer

OFF = ("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar")
QUIET: dict[str, Any] = dict.fromkeys(OFF, False)


class Net(Module):
    """Two layers, with tied weights between the first and the last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.last.weight = self.first.weight
        self.losses: list[torch.Tensor] = []

    def forward(self, inputs):
        return self.last(torch.relu(self.middle(torch.relu(self.first(inputs)))))

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        loss = nn.functional.mse_loss(self(inputs), targets)
        self.losses.append(loss.detach())
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("validated", nn.functional.mse_loss(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def make_data():
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(*(torch.randn(160, 8, generator=generator) for _ in range(2)))


def train(batch_size=16, ckpt_path=None, **options):
    """Train two epochs of batches of 16; the module, the Trainer, and its losses."""
    module = Net()
    trainer = Trainer(**{**QUIET, "max_epochs": 2, **options})
    loaders = [DataLoader(make_data(), batch_size=batch_size) for _ in range(2)]
    trainer.fit(module, *loaders, ckpt_path=ckpt_path)
    return module, trainer, [float(loss) for loss in module.losses]


class Saving(Callback):
    """Saves after so many steps."""

    def __init__(self, path: Path, at: int) -> None:
        self.path, self.at = path, at

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == self.at:
            trainer.save_checkpoint(self.path)


def furthest(losses: list[float], others: list[float]) -> float:
    """The largest difference between two runs."""
    return float((torch.tensor(losses) - torch.tensor(others)).abs().max())


def refusal(error, call):
    """The text of the error that a call ends in."""
    try:
        call()
    except error as caught:
        return str(caught)
    return None
