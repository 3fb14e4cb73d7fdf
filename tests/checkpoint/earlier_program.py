"""Writes a checkpoint of each form with the core that is installed.

python tests/checkpoint/earlier_program.py tests/checkpoint/earlier/COMMIT
"""

import sys
from collections import Counter, OrderedDict
from pathlib import Path

import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset

from core import Fabric, Module, Trainer
from core.checkpoint import DistributedCheckpointIO, SafetensorsCheckpointIO, TorchCheckpointIO
from core_fsdp import FSDPStrategy
from core_testing import in_one_process
from support.small_nets import QUIET

STEPS = 2


def values():
    """One of everything that a checkpoint holds."""
    return {
        "plain": [
            None,
            True,
            3,
            -0.5,
            float("inf"),
            "text",
            "\N{SNOWMAN}",
            2 + 1j,
            b"bytes",
            bytearray(b"more"),
        ],
        "nested": {
            "list": [1, [2.0, "three"]],
            "tuple": (1, ("a", "b")),
            "set": {1, 2},
            "empty": {},
        },
        "keys": {1: "one", (2, "b"): "pair", "$tag": "dollar"},
        "ordered": OrderedDict(b=1, a=2),
        "counter": Counter("aab"),
        "descriptions": [torch.float16, torch.Size([2, 3]), torch.device("cpu")],
        "arrays": {
            "numbers": numpy.arange(6, dtype=numpy.int16).reshape(2, 3),
            "scalar": numpy.float32(1.5),
        },
        "tensors": {
            "float32": torch.arange(6.0).reshape(2, 3),
            "bfloat16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
            "int64": torch.tensor(7),
            "bool": torch.tensor([True, False]),
            "empty": torch.zeros(0, 3),
            "transposed": torch.arange(6.0).reshape(2, 3).t(),
            "sparse": torch.sparse_coo_tensor(
                [[0, 1], [2, 0]], [3.0, 4.0], (2, 3), check_invariants=True
            ),
        },
    }


class Values:
    """Stands for them in a state, in which containers of other classes become plain ones."""

    def state_dict(self):
        return values()


def data():
    return torch.linspace(-1, 1, 32).double().reshape(8, 4)


def fill(module):
    """Weights that no generator makes."""
    for parameter in module.parameters():
        parameter.data = (
            torch.linspace(-0.5, 0.5, parameter.numel()).double().reshape(parameter.shape)
        )
    return module


def net():
    return fill(torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)))


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.1)


def train(model, optimizer, num_steps=STEPS, *, share=slice(None)):
    """The same data in each step. Ranks train with a share of it, whose gradients are averaged."""
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(data()[share]).square().mean().backward()
        optimizer.step()


class Regression(Module):
    """Two steps an epoch; saves at the end of training if it has a path."""

    def __init__(self, path=None):
        super().__init__()
        self.net, self.path = net(), path

    def on_train_end(self):
        if self.path is not None:
            self.trainer.save_checkpoint(self.path)

    def training_step(self, batch, batch_idx):
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = adam(self.parameters())
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)]


def fit(num_ranks, max_epochs, plugins=None, saves_to=None, ckpt_path=None):
    options = {"strategy": "ddp", "devices": num_ranks} if num_ranks > 1 else {"devices": 1}
    trainer = Trainer(**QUIET, **options, max_epochs=max_epochs, plugins=plugins)
    module = Regression(saves_to)
    loader = DataLoader(TensorDataset(data()), batch_size=4 // num_ranks)
    trainer.fit(module, loader, ckpt_path=ckpt_path)
    return trainer, module


def write_with_fabric(path, checkpoint_io, **entries):
    fabric = Fabric(accelerator="cpu", plugins=checkpoint_io)
    plain = net()
    model, optimizer = fabric.setup(plain, adam(plain.parameters()))
    train(model, optimizer)
    fabric.save(
        path,
        {"model": model, **({"optimizer": optimizer} if "values" in entries else {}), **entries},
    )


def write_sharded(fabric, path):
    plain = net()
    model, optimizer = fabric.setup(plain, adam(plain.parameters()))
    train(model, optimizer, share=slice(fabric.global_rank, None, fabric.world_size))
    fabric.save(path, {"model": model, "optimizer": optimizer})


def write(folder):
    folder.mkdir(parents=True)
    write_with_fabric(folder / "folder", DistributedCheckpointIO(), values=Values())
    write_with_fabric(folder / "file.ckpt", TorchCheckpointIO(), values=Values())
    write_with_fabric(folder / "file.safetensors", SafetensorsCheckpointIO(), epoch=3)
    Fabric(accelerator="cpu", strategy=FSDPStrategy(start_method="fork"), devices=2).launch(
        write_sharded, folder / "folder-2-ranks"
    )
    fit(1, 1, saves_to=folder / "trainer")
    fit(1, 1, TorchCheckpointIO(), folder / "trainer.ckpt")
    in_one_process(fit, 2, 1, None, folder / "trainer-2-ranks")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
