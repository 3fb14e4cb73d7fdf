"""A program that trains, as users start it: the tests start it in every way that there is."""

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer
from core.strategies import HorovodStrategy
from core_testing.ranks import QUIET


class Net(Module):
    """Momenta and decay, which what no rank has a gradient of must not get."""

    def __init__(self):
        super().__init__()
        self.layer, self.unused = nn.Linear(4, 2).double(), nn.Linear(4, 2).double()

    def training_step(self, batch, batch_idx):
        return (self.layer(batch[0]) - 1).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05, weight_decay=0.1)


def main():
    how, devices, folder, epochs = json.loads(sys.argv[1])
    torch.manual_seed(0)
    net, data = Net(), torch.randn(48, 4, generator=torch.Generator().manual_seed(1)).double()
    strategy = HorovodStrategy(start_method=how) if how else "single_device"
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", devices=devices, max_epochs=epochs, **QUIET
    )
    trainer.fit(net, DataLoader(TensorDataset(data), batch_size=8 // devices))
    if trainer.is_global_zero:
        torch.save(net.state_dict(), f"{folder}/weights")
        print(f"{trainer.global_step} steps")


if __name__ == "__main__":
    main()
