"""Checkpoints of one strategy, loaded under another: every pair of one device, DDP and FSDP on two
ranks.

Weights and Adam's moments must be what the writer had. No conversion in between, and the defaults
of each library. FSDP is torch's `fully_shard` (FSDP2) in all of them.
"""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import accelerate
import lightning
import torch
from others.processes import Failure, forked
from rich.table import Table
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from core import Fabric

STRATEGIES = {"one device": 1, "DDP": 2, "FSDP": 2}


class Program:
    """A model and its Adam on a strategy, set up as the library's pages tell.

    Attributes:
        model: as it was set up.
        optimizer: likewise.
    """

    def __init__(self, strategy: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.set_up(strategy, nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)))

    def train_a_step(self) -> None:
        self.backward(self.model(torch.ones(2, 6)).square().mean())
        self.optimizer.step()
        self.optimizer.zero_grad()

    def numbers(self) -> list[float]:
        """Every weight and moment, whole; all ranks."""
        own = list(self.model.parameters())
        moments = [
            self.optimizer.state[each][name] for each in own for name in ("exp_avg", "exp_avg_sq")
        ]
        whole = [
            each.full_tensor() if isinstance(each, DTensor) else each for each in [*own, *moments]
        ]
        return torch.cat([each.detach().flatten() for each in whole]).tolist()


class OfFabric(Program):
    """Either library's Fabric."""

    def start(self, strategy: str) -> Any:
        raise NotImplementedError

    def set_up(self, strategy, model):
        self.fabric = self.start(strategy)
        self.fabric.launch()
        self.model = self.fabric.setup_module(model)
        self.optimizer = self.fabric.setup_optimizers(torch.optim.Adam(self.model.parameters()))
        self.backward = self.fabric.backward
        self.state = {"model": self.model, "optimizer": self.optimizer}

    def save(self, path):
        self.fabric.save(path, self.state)

    def load(self, path):
        self.fabric.load(path, self.state)


class Core(OfFabric):
    def start(self, strategy):
        name = {"one device": "auto", "DDP": "ddp", "FSDP": "fsdp"}[strategy]
        return Fabric(accelerator="cpu", devices=STRATEGIES[strategy], strategy=name)


class Lightning(OfFabric):
    """FSDP by its ModelParallelStrategy, since its FSDPStrategy asks for a GPU."""

    def start(self, strategy):
        def shard(model, mesh):
            return fully_shard(model, mesh=mesh["data_parallel"])

        parallel = partial(lightning.fabric.strategies.ModelParallelStrategy, shard, 2, 1)
        kind = {"one device": "auto", "DDP": "ddp", "FSDP": parallel}[strategy]
        chosen = kind if isinstance(kind, str) else kind()
        return lightning.Fabric(accelerator="cpu", devices=STRATEGIES[strategy], strategy=chosen)


class Accelerate(Program):
    """Its FSDP asks for a GPU: that check is lifted here, and the device is the processor."""

    def set_up(self, strategy, model):
        if strategy == "FSDP":
            kind = accelerate.utils.DistributedType.MULTI_GPU
            processor = patch.dict(os.environ, ACCELERATE_TORCH_DEVICE="cpu")
            with (
                processor,
                patch.object(
                    accelerate.PartialState, "_prepare_backend", lambda *_: ("gloo", kind)
                ),
            ):
                plugin = accelerate.FullyShardedDataParallelPlugin(
                    fsdp_version=2, cpu_ram_efficient_loading=False
                )
                self.accelerator = accelerate.Accelerator(fsdp_plugin=plugin)
        else:
            self.accelerator = accelerate.Accelerator(cpu=True)
        optimizer = torch.optim.Adam(model.parameters())
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.backward = self.accelerator.backward

    def save(self, path):
        self.accelerator.save_state(str(path))

    def load(self, path):
        self.accelerator.load_state(str(path))


LIBRARIES: dict[str, Callable[[str, int], Any]] = {
    "core": Core,
    "Lightning": Lightning,
    "Accelerate": Accelerate,
}


def write(library, strategy: str, path: Path) -> list[float]:
    program = library(strategy, 0)
    program.train_a_step()
    program.save(path)
    return program.numbers()


def read(library, strategy: str, path: Path) -> list[float]:
    """Into a model that began elsewhere."""
    program = library(strategy, 1)
    program.load(path)
    return program.numbers()


def pair(library, writes: str, reads: str, folder: Path) -> str:
    path = folder / "saved.ckpt"
    written, *_ = forked(partial(write, library, writes, path), STRATEGIES[writes], limit_s=60)
    if isinstance(written, Failure):
        return f"not written: {written.kind}"
    loaded, *_ = forked(partial(read, library, reads, path), STRATEGIES[reads], limit_s=60)
    if isinstance(loaded, Failure):
        return f"no: {loaded.kind}"
    return "yes" if loaded == written else "other numbers"


def compare_strategies() -> Table:
    table = Table("written under", "read under", *LIBRARIES)
    for writes in STRATEGIES:
        for reads in STRATEGIES:
            cells = []
            for library in LIBRARIES.values():
                with tempfile.TemporaryDirectory() as folder:
                    cells.append(pair(library, writes, reads, Path(folder)))
            table.add_row(writes, reads, *cells)
    return table
