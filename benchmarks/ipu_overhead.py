"""The cost of a training step over a loop that calls PopTorch by hand: calls, and microseconds of
CPU.

    python benchmarks/ipu_overhead.py

As `step_overhead.py`, whose means it uses: one process, the contenders in turns, medians over the
rounds. Where PopTorch isn't installed, its simulator takes its place: calls are right then, and
times are those of the simulator.
"""

import argparse
import statistics
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from step_overhead import OFF, Batches, LoggingNet, Net, count_calls, cpu_us

from core import Trainer

if find_spec("poptorch") is None:
    sys.path.append(str(Path(__file__).parents[1] / "plugins/ipu/tests/simulator"))
import poptorch

LIMITS = {"by hand": 0, "Trainer": 70, "Trainer, one self.log": 105}
"""Calls of a step over those of the loop by hand."""


class MarkedNet(Net):
    """The module that a user of PopTorch writes: its forward returns the loss."""

    def forward(self, batch):
        return poptorch.identity_loss(self.training_step(batch, 0), reduction="none")


def by_hand(num_steps: int) -> None:
    module = MarkedNet()
    optimizer = poptorch.optim.SGD(module.parameters(), lr=1e-3)
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    executor = poptorch.trainingModel(module, options, optimizer)
    for batch in Batches(num_steps):
        executor(batch)
    executor.copyWeightsToHost()
    executor.destroy()


def trainer_loop(module_class: type[Net]):
    def run(num_steps: int) -> None:
        Trainer(accelerator="ipu", devices=1, max_epochs=1, **OFF).fit(
            module_class(), Batches(num_steps)
        )

    return run


RUNS = {
    "by hand": by_hand,
    "Trainer": trainer_loop(Net),
    "Trainer, one self.log": trainer_loop(LoggingNet),
}


def per_step(measure, num_steps: int) -> float:
    """The slope between a short and a long run, which has no share of starting and ending."""
    few = num_steps // 10
    return (measure(num_steps) - measure(few)) / (num_steps - few)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for run in RUNS.values():
        run(20)
    calls = {name: per_step(count_calls(run), 100) for name, run in RUNS.items()}
    times: dict[str, list[float]] = {name: [] for name in RUNS}
    for _ in range(arguments.rounds):
        for name, run in RUNS.items():
            times[name].append(per_step(cpu_us(run), arguments.steps))
    table = Table("contender", "calls", "calls more", "limit", "µs CPU", "ratio")
    medians = {name: statistics.median(own) for name, own in times.items()}
    for name in RUNS:
        more, ratio = calls[name] - calls["by hand"], medians[name] / medians["by hand"]
        row = (
            name,
            f"{calls[name]:.1f}",
            f"{more:+.1f}",
            LIMITS[name],
            f"{medians[name]:.0f}",
            f"{ratio:.3f}",
        )
        table.add_row(*map(str, row))
    Console().print(table)


if __name__ == "__main__":
    main()
