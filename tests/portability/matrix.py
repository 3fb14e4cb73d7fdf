"""Every configuration writes a checkpoint, and every configuration goes on from each of them.

One launch of each writes: it trains 10 steps, saves, and trains 10 more. One launch of each reads all checkpoints, and
trains 10 steps from each. The global batch is the same everywhere, and so are the losses.

    python tests/portability/matrix.py [--processes 4] [CONFIGURATION ...]     prints the table of docs/portability.md

To add a strategy, add its configurations to `CONFIGURATIONS`.
"""

import argparse
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from core import STRATEGY_REGISTRY, Fabric
from core.checkpoint import load_checkpoint

NUM_STEPS = 10
GLOBAL_BATCH = 8


@dataclass(frozen=True)
class Configuration:
    """One way to train.

    Attributes:
        strategy: an alias whose processes are copies of this one; "single_device" for one process.
        num_processes: of the run.
        precision: of the run.
        options: of `Fabric`.
        make_strategy: for a strategy with options: called without arguments.
    """

    strategy: str
    num_processes: int = 1
    precision: str = "64-true"
    label: str = ""
    options: dict = field(default_factory=dict)
    make_strategy: object = None

    @property
    def name(self):
        return f"{self.label or self.strategy.removesuffix('_fork')}-{self.num_processes}"

    @property
    def is_exact(self):
        return self.precision == "64-true"

    def fabric(self):
        strategy = self.make_strategy() if self.make_strategy else self.strategy
        return Fabric(
            accelerator="cpu",
            strategy=strategy,
            devices=self.num_processes,
            precision=self.precision,
            **self.options,
        )


ALL = [
    Configuration("single_device"),
    *(Configuration("ddp_fork", size) for size in (1, 2, 4)),
    *(Configuration("ddp_fork", size, "bf16-mixed", label="ddp bf16-mixed") for size in (1, 2, 4)),
]


def configurations(num_processes=2):
    """Those that can run here, with at most so many processes."""
    return [each for each in ALL if each.strategy in STRATEGY_REGISTRY and each.num_processes <= num_processes]


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

    def forward(self, x):
        self.num_calls += 1
        return self.last(torch.tanh(self.second(torch.tanh(self.frozen(torch.tanh(self.first(x)))))))


def make_run(fabric, seed):
    torch.manual_seed(seed)
    net = Net()
    parameters = [
        {"params": [net.first.weight, net.first.bias], "weight_decay": 0.1},
        {"params": [net.second.bias, *net.last.parameters()], "lr": 0.02},
    ]
    model, optimizer = fabric.setup(net, torch.optim.AdamW(parameters, lr=0.01))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "step": 0}


def train(fabric, state):
    """Ten steps. Returns the losses over the global batch."""
    losses = []
    strategy = fabric.strategy
    for _ in range(NUM_STEPS):
        generator = torch.Generator().manual_seed(state["step"])
        batch = torch.randn(GLOBAL_BATCH, 6, generator=generator, dtype=torch.float64)
        batch = batch.chunk(strategy.data_parallel_size)[strategy.data_parallel_rank]
        batch = batch.to(next(state["model"].parameters()).dtype)
        loss = (state["model"](batch).double() - batch.double().sum(1, keepdim=True)).square().mean()
        fabric.backward(loss)
        fabric.clip_gradients(state["model"], state["optimizer"], clip_val=1.0)
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
        first = train(fabric, state)
        fabric.save(folder / f"{configuration.name}.ckpt", state)
        return first, train(fabric, state)

    return configuration.fabric().launch(body)


def read_all(configuration, paths):
    """Launch once. Go on from each checkpoint: losses by path."""

    def body(fabric):
        losses = {}
        for path in paths:
            state = make_run(fabric, seed=1)
            fabric.load(path, state)
            losses[path] = train(fabric, state)
        return losses

    return configuration.fabric().launch(body)


def reference(path, precision):
    """Go on from a checkpoint on one device, restored by hand."""
    fabric = Fabric(accelerator="cpu", devices=1, strategy="single_device", precision=precision)
    state, saved = make_run(fabric, seed=1), load_checkpoint(path)
    state["model"].module.load_state_dict(saved["model"])
    names = dict(state["model"].module.named_parameters())
    optimizer = state["optimizer"].optimizer
    for name, entry in saved["optimizer"]["state"].items():
        moments = {key: value.to(names[name].dtype) if value.dim() else value for key, value in entry.items()}
        optimizer.state[names[name]] = {key: value.clone() for key, value in moments.items()}
    for group, other in zip(optimizer.param_groups, saved["optimizer"]["param_groups"], strict=True):
        group.update({key: value for key, value in other.items() if key != "params"})
    state["scheduler"].load_state_dict(saved["scheduler"])
    state["step"] = saved["step"]
    return train(fabric, state)


@dataclass
class Cell:
    """One pair: how far its losses are from those expected, relative to the largest of them.

    Attributes:
        kind: `"same"` (must be 0), `"exact"` (1e-10), or `"rounded"` (of a precision with few digits).
    """

    difference: float
    kind: str

    @property
    def tolerance(self):
        return {"same": 0.0, "exact": 1e-10, "rounded": 2e-2}[self.kind]

    @property
    def is_good(self):
        return self.difference <= self.tolerance


def run_matrix(chosen, folder):
    """All pairs: cells by names of writer and reader."""
    uninterrupted = write(Configuration("single_device", label="reference"), folder)
    written = {writer.name: write(writer, folder) for writer in chosen}
    paths = [folder / f"{writer.name}.ckpt" for writer in chosen]
    read = {reader.name: read_all(reader, paths) for reader in chosen}
    cells = {}
    for writer, path in zip(chosen, paths, strict=True):
        for reader in chosen:
            found = read[reader.name][path]
            if writer == reader:
                expected, kind = written[writer.name][1], "same"
            elif writer.is_exact and reader.is_exact:
                expected, kind = uninterrupted[1], "exact"
            else:
                expected, kind = reference(path, reader.precision), "exact" if reader.is_exact else "rounded"
            largest = max(map(abs, expected))
            difference = max(abs(one - other) for one, other in zip(found, expected, strict=True)) / largest
            cells[writer.name, reader.name] = Cell(difference, kind)
    return cells


def markdown(cells):
    readers = list(dict.fromkeys(reader for _, reader in cells))
    lines = [f"| written under | {' | '.join(readers)} |", "| --- " * (len(readers) + 1) + "|"]
    for writer in dict.fromkeys(writer for writer, _ in cells):
        row = [cells[writer, reader] for reader in readers]
        shown = ["equal" if cell.difference == 0 else f"{cell.difference:.0e}" for cell in row]
        lines.append(
            f"| {writer} | "
            + " | ".join(f"{text}" if cell.is_good else f"**{text}**" for text, cell in zip(shown, row, strict=True))
            + " |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CONFIGURATION")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    chosen = [
        each for each in configurations(arguments.processes) if not arguments.names or each.name in arguments.names
    ]
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as folder:
        print(markdown(run_matrix(chosen, Path(folder))))


if __name__ == "__main__":
    main()
