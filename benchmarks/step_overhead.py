"""What a training step costs over the loop that a user would write by hand: calls, and microseconds of CPU.

    python benchmarks/step_overhead.py

All contenders train the same tiny model in one process, in turns, so that what disturbs the machine disturbs all of
them; each figure is the median over the rounds. Calls are Python's and C's, counted by `sys.setprofile` in a run of
their own; they are the same in every run.
"""

import argparse
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from core import Callback, Fabric, Module, Trainer

NUM_FEATURES, BATCH_SIZE = 32, 4


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(NUM_FEATURES, 2)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class LoggingNet(Net):
    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).sum()
        self.log("loss", loss)
        return loss


class Listener(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        pass


class Batches:
    """The same batch again and again, so that the loader's own cost is nobody's."""

    def __init__(self, num_batches: int) -> None:
        self.batch, self.num_batches = torch.ones(BATCH_SIZE, NUM_FEATURES), num_batches

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self):
        for _ in range(self.num_batches):
            yield self.batch


def raw_loop(num_steps: int) -> None:
    module = Net()
    optimizer = module.configure_optimizers()
    for batch_idx, batch in enumerate(Batches(num_steps)):
        loss = module.training_step(batch, batch_idx)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def fabric_loop(num_steps: int) -> None:
    fabric = Fabric(accelerator="cpu")
    module = Net()
    model, optimizer = fabric.setup(module, module.configure_optimizers())
    step = model.training_step
    for batch_idx, batch in enumerate(Batches(num_steps)):
        loss = step(batch, batch_idx)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


OFF = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}


def trainer_loop(module_class: type[Net] = Net, **options) -> Callable[[int], None]:
    def run(num_steps: int) -> None:
        with tempfile.TemporaryDirectory() as root, redirect_stdout(io.StringIO()):
            trainer = Trainer(accelerator="cpu", max_epochs=1, default_root_dir=root, **options)
            trainer.fit(module_class(), Batches(num_steps))

    return run


def contenders() -> dict[str, Callable[[int], None]]:
    return {
        "raw loop": raw_loop,
        "Fabric": fabric_loop,
        "Trainer, everything off": trainer_loop(**OFF),
        "Trainer, one self.log": trainer_loop(LoggingNet, **OFF),
        "Trainer, one callback hook": trainer_loop(callbacks=Listener(), **OFF),
        "Trainer, no hook overridden": trainer_loop(callbacks=Callback(), **OFF),
        "Trainer, defaults": trainer_loop(LoggingNet),
    }


@dataclass
class Figures:
    """Per step, with what is spent before and after the steps taken out."""

    calls: float
    cpu_us: float


def per_step(measure: Callable[[int], float], num_steps: int) -> float:
    """The slope between a short and a long run, which has no share of starting and ending."""
    few = num_steps // 10
    return (measure(num_steps) - measure(few)) / (num_steps - few)


def count_calls(run: Callable[[int], None]) -> Callable[[int], float]:
    def measure(num_steps: int) -> float:
        calls = 0

        def profile(frame, event, argument):
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(profile)
        try:
            run(num_steps)
        finally:
            sys.setprofile(None)
        return calls

    return measure


def cpu_us(run: Callable[[int], None]) -> Callable[[int], float]:
    def measure(num_steps: int) -> float:
        started = time.process_time_ns()
        run(num_steps)
        return (time.process_time_ns() - started) / 1e3

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = contenders()
    for run in runs.values():
        run(100)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.rounds):
        for name, run in runs.items():
            times[name].append(per_step(cpu_us(run), arguments.steps))
    calls = {name: per_step(count_calls(run), 500) for name, run in runs.items()}
    show({name: Figures(calls[name], statistics.median(times[name])) for name in runs})


def show(figures: dict[str, Figures]) -> None:
    raw = figures["raw loop"]
    table = Table("contender", "calls", "over raw", "µs CPU", "over raw", "ratio")
    for name, own in figures.items():
        table.add_row(
            name,
            f"{own.calls:.1f}",
            f"{own.calls - raw.calls:+.1f}",
            f"{own.cpu_us:.1f}",
            f"{own.cpu_us - raw.cpu_us:+.1f}",
            f"{own.cpu_us / raw.cpu_us:.3f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
