"""The cost of a step over a loop that calls hivemind by hand: microseconds of this process's CPU, and of the clock.

    python benchmarks/hivemind_overhead.py

One peer that is alone, and makes a step of each batch: the smallest step there is. Contenders in turns, medians over
the rounds, slopes between a short and a long run. Times of hivemind's own processes are in those of the clock only.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import hivemind
import torch
from rich.console import Console
from rich.table import Table
from step_overhead import OFF, Batches, Net

from core import Trainer
from core.strategies import HivemindStrategy

BATCH_SIZE = 4


def by_hand(num_steps: int) -> tuple[float, float]:
    module = Net()
    dht = hivemind.DHT(start=True)
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="by hand",
        optimizer=module.configure_optimizers(),
        target_batch_size=1,
        batch_size_per_step=BATCH_SIZE,
        matchmaking_time=5.0,
        averaging_timeout=30.0,
    )
    began = clocks()
    for batch in Batches(num_steps):
        module.training_step(batch, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
    ended = clocks()
    optimizer.shutdown()
    dht.shutdown()
    return ended[0] - began[0], ended[1] - began[1]


class Clocked(Net):
    def on_train_start(self) -> None:
        self.began = clocks()

    def on_train_end(self) -> None:
        self.ended = clocks()


def in_trainer(num_steps: int) -> tuple[float, float]:
    module = Clocked()
    strategy = HivemindStrategy(target_batch_size=1, run_id="trainer", batch_size=BATCH_SIZE)
    with tempfile.TemporaryDirectory() as root:
        trainer = Trainer(strategy=strategy, accelerator="cpu", max_epochs=1, default_root_dir=root, **OFF)
        trainer.fit(module, Batches(num_steps))
    return module.ended[0] - module.began[0], module.ended[1] - module.began[1]


def clocks() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def per_step(run: Callable[[int], tuple[float, float]], num_steps: int) -> tuple[float, float]:
    few = num_steps // 10
    long, short = run(num_steps), run(few)
    return tuple(1e6 * (one - other) / (num_steps - few) for one, other in zip(long, short, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = {"by hand": by_hand, "Trainer": in_trainer}
    found = {name: [] for name in runs}
    for _ in range(arguments.rounds):
        for name, run in runs.items():
            found[name].append(per_step(run, arguments.steps))
    table = Table("contender", "µs CPU", "µs clock")
    for name, rows in found.items():
        table.add_row(name, *(f"{statistics.median(column):.0f}" for column in zip(*rows, strict=True)))
    Console().print(table)


if __name__ == "__main__":
    main()
