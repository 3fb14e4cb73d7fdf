"""Modules whose memory is known."""

import torch

from core import Module

WIDTH = 512
LAYER_BYTES = WIDTH * WIDTH * 4


class Net(Module):
    """Two layers without bias: 1 MiB each."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            *(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        )

    def training_step(self, batch):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(64, WIDTH), batch_size=8)
