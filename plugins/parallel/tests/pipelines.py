"""Modules and runs for the tests of pipelines; workers import this."""

import language
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module


class Net(Module):
    """Six parts, a function between two of them, and a weight of no part, that a stage and the step
    use.
    """

    def __init__(self, noise):
        super().__init__()
        torch.manual_seed(0)
        self.noise = noise
        self.embed = nn.Linear(6, 8)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)])
        self.head = nn.Linear(8, 2)
        self.temperature = nn.Parameter(torch.tensor(1.3))
        self.double()

    def pipeline(self):
        return [self.embed, torch.tanh, *self.blocks, self.warmed, self.head]

    def forward(self, x):
        x = torch.tanh(self.embed(x))
        for block in self.blocks:
            x = block(x)
        return self.head(self.warmed(x))

    def warmed(self, x):
        return x * self.temperature

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        noise = torch.randn_like(targets) * self.noise
        loss = (
            (self(inputs * self.temperature) * self.temperature - targets - noise).square().mean()
        )
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("error", (self(batch[0]) - batch[1]).abs().mean())

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2, fused=True)


class Seen(language.Seen):
    """What a run of `Net` shows: its weights, and the values that callbacks see."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.steps.append(float(trainer.callback_metrics["loss_step"]))


def loader(num_samples, batch_size):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(num_samples, 6, generator=generator, dtype=torch.float64)
    return DataLoader(TensorDataset(inputs, inputs.sin()[:, :2]), batch_size=batch_size)
