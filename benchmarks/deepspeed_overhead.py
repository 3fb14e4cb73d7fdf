"""The cost of a training step over a loop that calls DeepSpeed by hand: calls, and microseconds of
CPU.

    python benchmarks/deepspeed_overhead.py

As `step_overhead.py`, whose means it uses: one process, the contenders in turns, medians over the
rounds. DeepSpeed has the same configuration in each. The module runs one layer, so that whatever is
spent for each module is spent once.
"""

import argparse
import logging
import os
import statistics
import tempfile
from collections.abc import Callable

import deepspeed
import torch
from rich.console import Console
from rich.table import Table
from step_overhead import NUM_FEATURES, OFF, Batches, count_calls, cpu_us, fabric_loop

from core import Fabric, Module, Trainer
from core.strategies import DeepSpeedStrategy
from core_deepspeed.library import connect

LIMIT = 40
"""Calls of a step over those of the loop by hand."""
WHERE = {"accelerator": "cpu", "devices": 1}


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(NUM_FEATURES, 2)

    def forward(self, batch):
        return self.layer(batch).sum()

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def by_hand(stage: int) -> Callable[[int], None]:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage, "overlap_comm": stage > 1},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**12,
    }

    def run(num_steps: int) -> None:
        module = Net()
        engine, *_ = deepspeed.initialize(
            model=module, optimizer=module.configure_optimizers(), config=config
        )
        for batch in Batches(num_steps):
            loss = engine(batch)
            engine.backward(loss)
            engine.step()
        engine.destroy()

    return run


def make_strategy(stage: int) -> DeepSpeedStrategy:
    return DeepSpeedStrategy(stage, logging_level=logging.ERROR)


def trainer_loop(stage: int) -> Callable[[int], None]:
    def run(num_steps: int) -> None:
        with tempfile.TemporaryDirectory() as root:
            trainer = Trainer(
                strategy=make_strategy(stage), max_epochs=1, default_root_dir=root, **WHERE, **OFF
            )
            trainer.fit(Net(), Batches(num_steps))

    return run


def join_group() -> None:
    """The same group of one process for all, so that nobody pays for making it."""
    os.environ["LOCAL_RANK"] = "0"
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    connect("cpu", "gloo", logging.ERROR)


def per_step(measure: Callable[[int], float], num_steps: int) -> float:
    """The slope between a short and a long run, which has no share of starting and ending."""
    few = num_steps // 10
    return (measure(num_steps) - measure(few)) / (num_steps - few)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    join_group()
    table = Table("stage", "contender", "calls", "calls more", "limit", "µs CPU", "ratio")
    for stage in arguments.stages:
        in_fabric = fabric_loop(
            lambda stage=stage: Fabric(strategy=make_strategy(stage), **WHERE), Net
        )
        runs = {"by hand": by_hand(stage), "Fabric": in_fabric, "Trainer": trainer_loop(stage)}
        for run in runs.values():
            run(20)
        calls = {name: per_step(count_calls(run), 100) for name, run in runs.items()}
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(arguments.rounds):
            for name, run in runs.items():
                times[name].append(per_step(cpu_us(run), arguments.steps))
        medians = {name: statistics.median(own) for name, own in times.items()}
        for name in runs:
            more, ratio = calls[name] - calls["by hand"], medians[name] / medians["by hand"]
            row = (
                stage,
                name,
                f"{calls[name]:.1f}",
                f"{more:+.1f}",
                LIMIT,
                f"{medians[name]:.0f}",
                f"{ratio:.3f}",
            )
            table.add_row(*map(str, row))
    Console().print(table)


if __name__ == "__main__":
    main()
