"""Runs that something disturbs, what training ends with, and those that callbacks refuse."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from core import Capability, Module
from core.callbacks import Callback
from core_ddp import DDPStrategy
from support.tiny import Tiny


class Net(Module):
    """A norm, dropout, Adam, a scheduler, and a buffer that counts: all that a step changes."""

    def __init__(self, num_optimizers=1, norm=nn.BatchNorm1d):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Linear(4, 8), norm(8), nn.Dropout(0.3), nn.Linear(8, 2, bias=False)
        )
        self.register_buffer("count", torch.zeros(1))
        self.num_optimizers, self.num_calls = num_optimizers, 0

    def training_step(self, batch):
        self.count = self.count + 1  # another tensor
        self.num_calls += 1
        return (self.net(batch) - batch[:, :2]).square().mean()

    def configure_optimizers(self):
        if self.num_optimizers > 1:
            return [torch.optim.Adam(self.net[index].parameters(), lr=0.01) for index in (0, 1, 3)]
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Keep(Callback):
    """Where training began, and with what it ends on this rank."""

    def __init__(self):
        self.starts = []

    def on_train_start(self, trainer, module):
        self.starts.append(trainer.global_step)

    def on_train_end(self, trainer, module):
        self.num_calls = module.num_calls
        tensors = [*module.parameters(), *module.buffers()]
        for optimizer in trainer.strategy.optimizers:
            tensors += [value for state in optimizer.state.values() for value in state.values()]
            tensors += [torch.tensor(group["lr"]) for group in optimizer.param_groups]
        self.tensors = [
            getattr(each.detach(), "to_local", each.detach)().clone() for each in tensors
        ]
        self.tensors.append(torch.get_rng_state())


def fit(
    rank,
    data,
    *callbacks,
    keep=None,
    num_optimizers=1,
    norm=nn.BatchNorm1d,
    ckpt_path=None,
    **options,
):
    """Train with batches of two, or on those that `data` yields. Returns what was kept, and the
    number of steps.
    """
    keep = keep or Keep()
    torch.manual_seed(rank.backend.num_processes)
    trainer = rank.trainer(callbacks=[keep, *callbacks], **{"max_epochs": 1, **options})
    loader = DataLoader(data, batch_size=2) if isinstance(data, torch.Tensor) else data
    trainer.fit(Net(num_optimizers, norm), loader, ckpt_path=ckpt_path)
    return keep, trainer.global_step


def samples(num_ranks, num_batches=12):
    """Two of each batch for each rank: those of a batch are a row."""
    return torch.randn(num_batches, 2 * num_ranks, 4, generator=torch.Generator().manual_seed(1))


class Manual(Tiny):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        self.manual_backward(self(batch[0]).square().mean())
        self.optimizers().step()


class Closure(Tiny):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())


class Apart(DDPStrategy):
    """Promises no replicas."""

    @property
    def capabilities(self):
        return super().capabilities & ~Capability.REPLICATED_PARAMETERS
