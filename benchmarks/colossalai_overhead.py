"""The cost of a step over a loop that calls Colossal-AI by hand: microseconds of each rank's CPU, and of the clock.

    torchrun --nproc-per-node 2 benchmarks/colossalai_overhead.py

Two ranks, TorchDDPPlugin, and a layer of a few weights: the smallest step there is. Contenders in turns, medians over
the rounds, slopes between a short and a long run.
"""

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from step_overhead import OFF, Batches, Net

from core import Fabric, Trainer
from core_colossalai import library


class Called(Net):
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(batch)


def by_hand(num_steps: int) -> tuple[float, float]:
    module, booster = Called(), library.booster("torch_ddp", {}, "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer, *_ = booster.boost(module, module.configure_optimizers())
    began = clocks()
    for batch in Batches(num_steps):
        optimizer.zero_grad()
        booster.backward(model(batch).sum(), optimizer)
        optimizer.step()
    return since(began)


def in_fabric(num_steps: int) -> tuple[float, float]:
    fabric, module = Fabric(strategy="colossalai", accelerator="cpu", devices=2), Called()
    model, optimizer = fabric.setup(module, module.configure_optimizers())
    began = clocks()
    for batch in Batches(num_steps):
        optimizer.zero_grad()
        fabric.backward(model(batch).sum())
        optimizer.step()
    passed = since(began)
    fabric.teardown()
    return passed


class Clocked(Called):
    def on_train_start(self) -> None:
        self.began = clocks()

    def on_train_end(self) -> None:
        self.passed = since(self.began)


def in_trainer(num_steps: int) -> tuple[float, float]:
    module = Clocked()
    with tempfile.TemporaryDirectory() as root:
        options = OFF | {
            "accelerator": "cpu",
            "use_distributed_sampler": False,
            "devices": 2,
            "default_root_dir": root,
        }
        Trainer(strategy="colossalai", max_epochs=1, **options).fit(module, Batches(num_steps))
    return module.passed


def clocks() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def since(began: tuple[float, float]) -> tuple[float, float]:
    return tuple(now - then for now, then in zip(clocks(), began, strict=True))


def per_step(run: Callable[[int], tuple[float, float]], num_steps: int) -> tuple[float, float]:
    few = num_steps // 10
    long, short = run(num_steps), run(few)
    return tuple(1e6 * (one - other) / (num_steps - few) for one, other in zip(long, short, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    runs = {"by hand": by_hand, "Fabric": in_fabric, "Trainer": in_trainer}
    found = {name: [] for name in runs}
    for _ in range(arguments.rounds):
        for name, run in runs.items():
            dist.barrier()
            found[name].append(per_step(run, arguments.steps))
    if dist.get_rank() == 0:
        table = Table("contender", "µs CPU", "µs clock")
        for name, rows in found.items():
            table.add_row(name, *(f"{statistics.median(column):.0f}" for column in zip(*rows, strict=True)))
        Console().print(table)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
