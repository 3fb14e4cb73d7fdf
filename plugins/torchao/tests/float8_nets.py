"""What the tests of training in 8-bit floats train, also on other ranks."""

import importlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module


def stack():
    """Two layers that fit, with one between them that gives float32, and one that doesn't fit."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(32, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 32), nn.Linear(32, 4)
    )


class Net(Module):
    """Two blocks, which `fsdp` gathers by themselves, and a layer that doesn't fit."""

    def __init__(self):
        super().__init__()
        self.blocks = None
        self.losses = []

    def configure_model(self):
        if self.blocks is None:
            torch.manual_seed(0)
            self.blocks = nn.Sequential(
                *(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(2))
            )
            self.head = nn.Linear(32, 4)

    def training_step(self, batch):
        inputs = batch[0][0]
        loss = nn.functional.mse_loss(self.head(self.blocks(inputs)).float(), inputs[:, :4] * 2)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def on_train_end(self):
        """Losses, whole weights on rank 0, and the kinds of the first weight's and of the stored
        tensors.
        """
        strategy, weight = self.trainer.strategy, self.blocks[0][0].weight
        stored = strategy.get_module_state_dict(self)
        is_cut = hasattr(weight, "placements")
        whole = strategy.get_module_state_dict(self, layout="full") if is_cut else stored
        self.found = {
            "losses": self.losses,
            "weights": {name: value.clone() for name, value in whole.items()},
            "gathered": kind(weight),
            "stored": {kind(value) for value in stored.values()},
            "states": {
                value.dtype
                for value in self.trainer.optimizers[0].state[weight].values()
                if value.ndim
            },
        }


class Rounding(Net):
    """Steps by `core_torchao.optim.AdamWBF16`; ranks draw other numbers, as dropout does."""

    def configure_optimizers(self):
        # in this rank only: compiling takes a minute
        torch.compile = lambda function, **unused: function
        self.noise = nn.Dropout(0.1)
        optimizer = importlib.import_module("core_torchao.optim").AdamWBF16(
            self.parameters(), lr=1e-3
        )
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    def on_train_batch_start(self, batch, batch_idx):
        self.noise(torch.ones(7 + self.trainer.global_rank))

    def on_train_end(self):
        super().on_train_end()
        own = {name: getattr(one, "_local_tensor", one) for name, one in self.named_parameters()}
        self.found["own"] = {name: one.detach().clone() for name, one in own.items()}
        self.found["drawn"] = torch.get_rng_state()


def kind(tensor):
    """The class of a tensor, or of the part that this rank has."""
    return type(getattr(tensor, "_local_tensor", tensor)).__name__


def loader(num_batches=16):
    """Batches that ranks get in turn, so that one device accumulates over those of a step."""
    data = torch.randn(num_batches, 16, 32, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(data), batch_size=1)


def fit(rank, precision, num_steps, save=None, ckpt_path=None, num_shares=None, net=Net):
    """Train for some steps. Returns the losses, and what `on_train_end` has found."""
    window = max(1, 2 // (num_shares or rank.backend.num_processes))
    trainer = rank.trainer(precision=precision, max_steps=num_steps, accumulate_grad_batches=window)
    module = net()
    trainer.fit(module, loader(), ckpt_path=ckpt_path)
    if save is not None:
        trainer.save_checkpoint(save)
    return module.found
