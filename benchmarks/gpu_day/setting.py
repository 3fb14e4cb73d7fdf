"""The setting of all steps: the device, a small net with its data, clocks, and an end that says why."""

import json
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer

DAY = json.loads(
    os.environ.get("GPU_DAY", '{"result": "result.json", "small": true, "limit_s": 600}')
)
SMALL = DAY["small"]
KIND = "cpu" if SMALL else "cuda"
DEVICE = torch.device("cpu") if SMALL else torch.device("cuda", 0)
OFF = dict.fromkeys(
    ("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False
)
MIB = 1 << 20


class Skip(Exception):
    """This can't be tried here; the text says why."""


def synchronize():
    """Wait for the device."""
    if not SMALL:
        torch.cuda.synchronize(DEVICE)


def seconds(function):
    """The wall time of a call, its work on the device included."""
    synchronize()
    began = time.perf_counter()
    function()
    synchronize()
    return time.perf_counter() - began


@contextmanager
def folder():
    """A temporary folder beside the report, whose disk is the one that is meant."""
    path = Path(tempfile.mkdtemp(dir=Path(DAY["result"]).parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def make_trainer(**options):
    """A quiet Trainer on one device."""
    return Trainer(**{**OFF, "accelerator": KIND, "devices": 1, "max_epochs": 1, **options})


class Net(Module):
    """A small regression with dropout; keeps its losses."""

    def __init__(self, width=64):
        super().__init__()
        torch.manual_seed(1)
        self.width = width
        self.layers = nn.Sequential(
            nn.Linear(16, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 1)
        )
        self.losses = []

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.layers(batch[0]).float(), batch[1].float())

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(outputs.detach())

    def configure_optimizers(self):
        # Adam's eps is 0 in float16
        return torch.optim.SGD(self.parameters(), lr=0.64 / self.width, momentum=0.5)


def loader(num_samples=256):
    """Batches of 16."""
    inputs = torch.randn(num_samples, 16, generator=torch.Generator().manual_seed(2))
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16)


def expect(is_so, text):
    """Raise with this text if it isn't so."""
    if not is_so:
        raise AssertionError(text)
