"""What a training step costs over a loop that calls DeepSpeed by hand: calls, and microseconds of CPU.

    python benchmarks/deepspeed_overhead.py --stage 2

As `step_overhead.py`, whose means it uses: one process, the contenders in turns, medians over the rounds.
"""

import argparse
import logging
import os
import statistics
import sys
import tempfile
from collections.abc import Callable

import deepspeed
import torch
from step_overhead import NUM_FEATURES, OFF, Batches, Figures, count_calls, cpu_us, per_step, show

from core import Fabric, Module, Trainer
from core.strategies import DeepSpeedStrategy
from core_deepspeed.library import connect

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
        engine, *_ = deepspeed.initialize(model=module, optimizer=module.configure_optimizers(), config=config)
        for batch in Batches(num_steps):
            loss = engine(batch)
            engine.backward(loss)
            engine.step()
        engine.destroy()

    return run


def fabric_loop(stage: int) -> Callable[[int], None]:
    def run(num_steps: int) -> None:
        fabric = Fabric(strategy=DeepSpeedStrategy(stage), **WHERE)
        fabric.launch()
        module = Net()
        model, optimizer = fabric.setup(module, module.configure_optimizers())
        step = model.training_step
        for batch_idx, batch in enumerate(Batches(num_steps)):
            loss = step(batch, batch_idx)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        fabric.strategy.teardown()

    return run


def trainer_loop(stage: int) -> Callable[[int], None]:
    def run(num_steps: int) -> None:
        with tempfile.TemporaryDirectory() as root:
            strategy = DeepSpeedStrategy(stage)
            trainer = Trainer(strategy=strategy, max_epochs=1, default_root_dir=root, **WHERE, **OFF)
            trainer.fit(Net(), Batches(num_steps))

    return run


def join_group() -> None:
    """The same group of one process for all, so that nobody pays for making it."""
    os.environ["LOCAL_RANK"] = "0"
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    connect("gloo", logging.WARNING)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    join_group()
    runs = {
        "raw loop": by_hand(arguments.stage),
        "Fabric": fabric_loop(arguments.stage),
        "Trainer, everything off": trainer_loop(arguments.stage),
    }
    for run in runs.values():
        run(20)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.rounds):
        for name, run in runs.items():
            times[name].append(per_step(cpu_us(run), arguments.steps))
    calls = {name: per_step(count_calls(run), 100) for name, run in runs.items()}
    print(f"stage {arguments.stage}", file=sys.stderr)
    show({name: Figures(calls[name], statistics.median(times[name])) for name in runs})


if __name__ == "__main__":
    main()
