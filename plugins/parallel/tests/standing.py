"""A model that every axis can cut, in which one rank stands still or dies; workers import this."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from axes import Block
from mixtures import Mixture, Stacked
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module

if TYPE_CHECKING:
    from core_testing.ranks import Rank


class Stands(nn.Module):
    """A part that does nothing, but for one rank in one step.

    Attributes:
        how: that ends on this rank, `"hangs"`, `"dies"`, or `"strays"` to another call; nothing on all others. In a
            tuple, since a new value of a string has the call of the model compared again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.how: tuple[str | None, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        """The same tensor."""
        if "hangs" in self.how:
            time.sleep(600)
        elif "dies" in self.how:
            os.kill(os.getpid(), signal.SIGKILL)
        elif "strays" in self.how:
            dist.barrier()
        return x


class Net(Module):
    """Two blocks of attention with a plan and parts. The second of four parts is where a rank stands still."""

    tensor_parallel_plan = {
        **{f"blocks.*.attention.{name}": "colwise" for name in ("query", "key", "value")},
        **dict.fromkeys(("blocks.*.attention.out", "blocks.*.down"), "rowwise"),
        "blocks.*.up": "colwise",
    }

    def __init__(self) -> None:
        super().__init__()
        self.first, self.stands, self.blocks = nn.Linear(16, 16), Stands(), nn.ModuleList([Block(), Block()])

    def pipeline(self) -> list[Any]:
        """The parts; the one that stands still is in the second of two stages."""
        return [self.first, self.blocks[0], self.stands, self.blocks[1]]

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, positions, 16), of the result too."""
        for part in self.pipeline():
            x = part(x)
        return x

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The mean square."""
        return self(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        """An optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Third(Net):
    """It happens in the third batch."""

    def __init__(self, how: str | None) -> None:
        super().__init__()
        self.how = how

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Begin to stand still from here on."""
        if batch_idx == 2:
            self.stands.how = (self.how,)


class OfExperts(Third):
    """The same, before a mixture of experts."""

    def __init__(self, how: str | None) -> None:
        super().__init__(how)
        self.blocks[1] = Mixture(Stacked())


def fit(rank: Rank, number: int, how: str, make: Any = Third) -> None:
    """An epoch of four batches, in the third of which this rank stands still or dies."""
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(32, 4, 16)), batch_size=8 // rank.backend.data_parallel_size)
    rank.trainer(max_epochs=1).fit(make(how if rank.number == number else None), data)
