"""Every configuration writes a checkpoint, and every configuration goes on from each of them.

One launch of each writes: it trains 10 steps, saves, and trains 10 more. One launch of each reads
all checkpoints, and trains 10 steps from each. The global batch is the same everywhere, and so are
the losses.

To add a strategy from elsewhere, call `run_matrix` with configurations of its own.
"""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from core import STRATEGY_REGISTRY, Capability, Fabric

NUM_STEPS = 10
GLOBAL_BATCH = 8


@dataclass(frozen=True)
class Configuration:
    """One way to train.

    Attributes:
        strategy: its alias.
        num_processes: of the run, forked from this one.
        label: what it is called, if not by the alias.
        precision: of the run.
        options: of the strategy.
        clipping: how gradients are clipped.
    """

    strategy: str
    num_processes: int = 1
    label: str = ""
    precision: str = "64-true"
    options: dict = field(default_factory=dict, hash=False)
    clipping: dict = field(default_factory=lambda: {"clip_val": 1.0}, hash=False)

    @property
    def name(self):
        return f"{self.label or self.strategy}-{self.num_processes}"

    @property
    def is_exact(self):
        return self.precision == "64-true"

    def fabric(self):
        strategy = STRATEGY_REGISTRY.create(self.strategy, **self.options)
        return Fabric(
            accelerator="cpu",
            strategy=strategy,
            devices=self.num_processes,
            precision=self.precision,
        )


FORK = {"start_method": "fork"}
SINGLE_DEVICE = Configuration("single_device")


class Net(nn.Module):
    """Tied weights, a frozen one, and a buffer that training changes the same way on all ranks."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.last = nn.Linear(6, 1)
        self.register_buffer("num_calls", torch.zeros((), dtype=torch.int64))

    def cut(self, mesh):
        """Over the devices of a tensor group."""
        columns, gathered = ColwiseParallel(), ColwiseParallel(output_layouts=Replicate())
        parallelize_module(
            self, mesh, {"first": columns, "frozen": RowwiseParallel(), "second": gathered}
        )
        self.second.weight = self.first.weight

    def forward(self, x):
        self.num_calls += 1
        return self.last(
            torch.tanh(self.second(torch.tanh(self.frozen(torch.tanh(self.first(x))))))
        )


def make_run(fabric, seed):
    torch.manual_seed(seed)
    net, mesh = Net(), fabric.strategy.device_mesh
    if mesh is not None and "tensor_parallel" in mesh.mesh_dim_names:
        net.cut(mesh["tensor_parallel"])
    parameters = [
        {"params": [net.first.weight, net.first.bias], "weight_decay": 0.1},
        {"params": [net.second.bias, *net.last.parameters()], "lr": 0.02},
    ]
    model, optimizer = fabric.setup(net, torch.optim.AdamW(parameters, lr=0.01))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "step": 0}


def train(fabric, state, clipping):
    """Ten steps. Returns the losses over the global batch."""
    losses = []
    strategy = fabric.strategy
    for _ in range(NUM_STEPS):
        generator = torch.Generator().manual_seed(state["step"])
        batch = torch.randn(GLOBAL_BATCH, 6, generator=generator, dtype=torch.float64)
        batch = batch.chunk(strategy.data_parallel_size)[strategy.data_parallel_rank]
        batch = batch.to(next(state["model"].parameters()).dtype)
        loss = (
            (state["model"](batch).double() - batch.double().sum(1, keepdim=True)).square().mean()
        )
        fabric.backward(loss, model=state["model"])
        fabric.clip_gradients(state["model"], state["optimizer"], **clipping)
        state["optimizer"].step()
        state["optimizer"].zero_grad()
        state["scheduler"].step()
        state["step"] += 1
        losses.append(fabric.all_reduce(loss.detach()).item())
    return losses


def write(configuration, folder):
    """Launch once. Train, save, and go on: the losses of both halves."""

    def body(fabric):
        state = make_run(fabric, seed=0)
        first = train(fabric, state, configuration.clipping)
        fabric.save(folder / f"{configuration.name}.ckpt", state)
        return first, train(fabric, state, configuration.clipping)

    return configuration.fabric().launch(body)


def read_all(configuration, paths, restore):
    """Launch once, or once for each where a run has one module. Go on from each checkpoint: losses
    by path.
    """

    def body(fabric, own):
        losses = {}
        for path in own:
            state = make_run(fabric, seed=1)
            restore(fabric, path, state)
            losses[path] = train(fabric, state, configuration.clipping)
        return losses

    several = Capability.SEVERAL_MODULES in configuration.fabric().strategy.capabilities
    runs = [list(paths)] if several else [[path] for path in paths]
    found = [configuration.fabric().launch(body, own) for own in runs]
    return {path: losses for each in found for path, losses in each.items()}


def restore(fabric, path, state):
    """As users do."""
    fabric.load(path, state)


@dataclass
class Cell:
    """One pair: how far its losses are from those expected, relative to the largest of them.

    Attributes:
        tolerance: 0 for a configuration that goes on from its own checkpoint.
    """

    difference: float
    tolerance: float

    @property
    def is_good(self):
        return self.difference <= self.tolerance


def run_matrix(chosen, folder, converted=lambda reader, paths: {}):
    """All pairs: cells by names of writer and reader.

    Args:
        chosen: configurations.
        folder: for their checkpoints.
        converted: losses that are expected of a reader, by paths, where they aren't those of one
            device.
    """
    uninterrupted = write(Configuration("single_device", label="reference"), folder)[1]
    written = {writer.name: write(writer, folder)[1] for writer in chosen}
    paths = {writer: folder / f"{writer.name}.ckpt" for writer in chosen}
    cells = {}
    for reader in chosen:
        found, others = read_all(reader, paths.values(), restore), converted(reader, paths)
        for writer, path in paths.items():
            expected = written[writer.name] if writer == reader else others.get(path, uninterrupted)
            cells[writer.name, reader.name] = compare(
                found[path], expected, 0.0 if writer == reader else 1e-10
            )
    return cells


def compare(found, expected, tolerance):
    largest = max(map(abs, expected))
    return Cell(
        max(abs(one - other) for one, other in zip(found, expected, strict=True)) / largest,
        tolerance,
    )
