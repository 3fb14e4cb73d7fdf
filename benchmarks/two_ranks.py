"""The cost of a step in two ranks: contenders in turns, each a loop that trains so many steps. Of
no use by itself.

Processes are those of torchrun, in one group that all contenders share, unless a benchmark says
what else joins them. Before anything is measured, all must end with the same weights. Figures are
medians over the rounds, of slopes between a short and a long run; a ratio is that of two runs of
the same round.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from step_overhead import OFF

from core import Fabric, Module, Trainer
from core.strategies import Strategy

NUM_FEATURES, BATCH_SIZE = 32, 4
WHERE = {"accelerator": "cpu"}  # and on all ranks that were started


@dataclass(frozen=True)
class Group:
    """The group that joins the processes: torch.distributed, or what the contenders use in its
    place.
    """

    begin: Callable[[], Any]
    rank: Callable[[], int]
    barrier: Callable[[], Any]
    end: Callable[[], Any]


TORCHS = Group(
    partial(dist.init_process_group, "gloo"),
    dist.get_rank,
    dist.barrier,
    dist.destroy_process_group,
)
ALONE = Group(*(lambda: 0,) * 4)
"""One process, which needs none."""


class Net(Module):
    """A layer of a few weights, which begins everywhere as everywhere else."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(NUM_FEATURES, 2)

    def forward(self, batch):
        return self.layer(batch).square().mean()

    def training_step(self, batch, batch_idx):
        return self(batch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Batches:
    """A batch of this rank's own, again and again."""

    def __init__(self, num_batches: int) -> None:
        rank = next(
            (int(os.environ[name]) for name in ("RANK", "HOROVOD_RANK") if name in os.environ), 0
        )
        own = torch.Generator().manual_seed(1 + rank)
        self.batch, self.num_batches = (
            torch.randn(BATCH_SIZE, NUM_FEATURES, generator=own),
            num_batches,
        )

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self):
        for _ in range(self.num_batches):
            yield self.batch


@dataclass(frozen=True)
class Run:
    """The weights at the end, and seconds of this process's CPU and of the clock between first and
    last step.
    """

    weights: torch.Tensor
    cpu_s: float
    clock_s: float


class Stopwatch:
    """CPU and clock since it was made."""

    def __init__(self) -> None:
        self._began = time.process_time(), time.perf_counter()

    def stop(self, module: Module) -> Run:
        ended = time.process_time(), time.perf_counter()
        weights = torch.cat([own.detach().flatten() for own in module.parameters()])
        return Run(weights, *(now - then for now, then in zip(ended, self._began, strict=True)))


def train_by(fabric: Fabric, num_steps: int) -> Run:
    """The loop of a user of Fabric."""
    module = Net()
    model, optimizer = fabric.setup(module, module.configure_optimizers())
    watch = Stopwatch()
    for batch in Batches(num_steps):
        fabric.backward(model(batch))
        optimizer.step()
        optimizer.zero_grad()
    return watch.stop(module)


def in_fabric(make_strategy: Callable[[], Strategy]) -> Callable[[int], Run]:
    def run(num_steps: int) -> Run:
        fabric = Fabric(strategy=make_strategy(), **WHERE)
        fabric.launch()
        found = train_by(fabric, num_steps)
        fabric.teardown()
        return found

    return run


class Watched(Net):
    def on_train_start(self) -> None:
        self.watch = Stopwatch()

    def on_train_end(self) -> None:
        self.found = self.watch.stop(self)


def in_trainer(make_strategy: Callable[[], Strategy]) -> Callable[[int], Run]:
    def run(num_steps: int) -> Run:
        module, options = Watched(), {**OFF, **WHERE, "use_distributed_sampler": False}
        with tempfile.TemporaryDirectory() as root:
            trainer = Trainer(
                strategy=make_strategy(), max_epochs=1, default_root_dir=root, **options
            )
            trainer.fit(module, Batches(num_steps))
        return module.found

    return run


@dataclass(frozen=True)
class Contest:
    """A loop by hand, and the strategy that does the same, to a tolerance of the weights after 50
    steps.
    """

    by_hand: Callable[[int], Run]
    make_strategy: Callable[[], Strategy]
    group: Group = TORCHS
    tolerance: float = 1e-6

    @property
    def runs(self) -> dict[str, Callable[[int], Run]]:
        return {
            "by hand": self.by_hand,
            "Fabric": in_fabric(self.make_strategy),
            "Trainer": in_trainer(self.make_strategy),
        }


def per_step(
    run: Callable[[int], Run], num_steps: int, barrier: Callable[[], Any]
) -> tuple[float, float]:
    """Microseconds of CPU and of the clock."""
    few = num_steps // 10
    barrier()
    long, short = run(num_steps), run(few)
    scale = 1e6 / (num_steps - few)
    return scale * (long.cpu_s - short.cpu_s), scale * (long.clock_s - short.clock_s)


def measure(
    contest: Contest, num_steps: int, num_rounds: int
) -> dict[str, list[tuple[float, float]]]:
    expected = contest.by_hand(50).weights
    for run in contest.runs.values():
        torch.testing.assert_close(run(50).weights, expected, rtol=1e-6, atol=contest.tolerance)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contest.runs}
    for _ in range(num_rounds):
        for name, run in contest.runs.items():
            found[name].append(per_step(run, num_steps, contest.group.barrier))
    return found


def add_rows(table: Table, contest: str, found: dict[str, list[tuple[float, float]]]) -> None:
    for name, rows in found.items():
        pairs = zip(rows, found["by hand"], strict=True)
        ratios = zip(
            *([one / other for one, other in zip(*pair, strict=True)] for pair in pairs),
            strict=True,
        )
        medians = [f"{statistics.median(column):.0f}" for column in zip(*rows, strict=True)]
        table.add_row(
            contest, name, *medians, *(f"{statistics.median(column):.2f}" for column in ratios)
        )


def compare(contests: dict[str, Contest], description: str) -> None:
    """All ranks. Measure each, in the group of the first, and print a table on rank 0."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    group = next(iter(contests.values())).group
    group.begin()
    table = Table("", "contender", "µs CPU", "µs clock", "CPU, ratio", "clock, ratio")
    before = os.getloadavg()[0]
    for name, contest in contests.items():
        add_rows(table, name, measure(contest, arguments.steps, arguments.rounds))
    if group.rank() == 0:
        Console().print(table)
        print(
            f"Load of the machine, which counts this too: {before:.1f} before, "
            f"{os.getloadavg()[0]:.1f} after."
        )
    group.end()
