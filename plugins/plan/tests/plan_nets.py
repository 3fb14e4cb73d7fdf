"""Modules whose memory is known."""

import torch

from core import Module
from core_ddp import DDPStrategy

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


class AsksForValues(Net):
    """Needs to know how many different values there are."""

    def training_step(self, batch):
        found = self.layers(batch)
        return found.mean() * len(torch.unique(found))


class AsksForFinite(Net):
    """Skips steps whose loss isn't finite, and reads the loss."""

    def training_step(self, batch):
        loss = super().training_step(batch)
        if not torch.isfinite(loss) or torch.isnan(loss).any():
            return None
        self.seen = loss.item()
        return loss


class Buffered(DDPStrategy):
    """A stranger's strategy, with 3 MiB of its own."""

    def setup_module(self, module):
        self.own = torch.zeros(3 * 2**18)
        return super().setup_module(module)
