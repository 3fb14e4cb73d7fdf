"""A model that every axis can cut, in which one rank stands still or dies; workers import this."""

import os
import signal
import time

import torch
import torch.distributed as dist
from language import WIDTH, Net
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module
from core_testing.waiting import slowness


class Stands(nn.Module):
    """A part that does nothing, but for one rank in one step.

    Attributes:
        how: that ends on this rank, `"hangs"`, `"dies"`, or `"strays"` to another call; nothing on
            all others. In a tuple, since a new value of a string has the call of the model compared
            again.
    """

    def __init__(self):
        super().__init__()
        self.how = ()

    def forward(self, x):
        """The same tensor."""
        if "hangs" in self.how:
            # The limits of a watch grow in the same way.
            time.sleep(600 * slowness())
        elif "dies" in self.how:
            os.kill(os.getpid(), signal.SIGKILL)
        elif "strays" in self.how:
            dist.barrier()
        return x


class Third(Module):
    """It happens in the third batch, in the second of two stages."""

    tensor_parallel_plan = {f"net.{name}": word for name, word in Net.tensor_parallel_plan.items()}

    def __init__(self, how, make=Net):
        super().__init__()
        self.how = how
        self.first, self.stands, self.net = nn.Linear(WIDTH, WIDTH), Stands(), make()

    def pipeline(self):
        """The parts; the one that stands still is in the second of two stages."""
        return [self.first, self.net.blocks[0], self.stands, self.net.blocks[1]]

    def forward(self, x):
        """Shape (batch, positions, 16), of the result too."""
        for part in self.pipeline():
            x = part(x)
        return x

    def on_train_batch_start(self, batch, batch_idx):
        """Begin to stand still from here on."""
        if batch_idx == 2:
            self.stands.how = (self.how,)

    def training_step(self, batch, batch_idx):
        """The mean square."""
        return self(batch[0]).square().mean()

    def configure_optimizers(self):
        """An optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(rank, number, how, make):
    """An epoch of four batches, in the third of which this rank stands still or dies."""
    torch.manual_seed(0)
    data = DataLoader(
        TensorDataset(torch.randn(32, 4, WIDTH)), batch_size=8 // rank.backend.data_parallel_size
    )
    rank.trainer(max_epochs=1).fit(Third(how if rank.number == number else None, make), data)
