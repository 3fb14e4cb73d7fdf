"""Core beside Lightning, Accelerate and a loop by hand: the figures of a table in
docs/benchmarks.md.

    python -m pip install lightning accelerate torchdata
    python benchmarks/against_others.py
    python benchmarks/against_others.py --only killed

A step: as in `step_overhead.py`, the same tiny model, batches and SGD in one process, contenders in
turns, with loggers, bars, checkpoints and summaries off. Calls are Python's and C's. An import: its
CPU time and that of `import torch`, which comes first, over the latter, in the same new process;
medians of the rounds. The other parts are in `others/`, a file each, and say there what they do.
Libraries' own warnings are left out.
"""

import argparse
import contextlib
import io
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from importlib.metadata import version

import accelerate
import lightning
import torch
from others.damaged import compare_damage
from others.killed import compare_kills
from others.means import compare_means
from others.resumed import compare_resumes
from others.saving import compare_saving
from others.strategies import compare_strategies
from rich.console import Console
from rich.table import Table
from step_overhead import (
    OFF,
    Batches,
    Net,
    count_calls,
    cpu_us,
    fabric_loop,
    per_step,
    raw_loop,
    short_and_long,
)
from step_overhead import trainer_loop as core_trainer
from torch import nn

from core import Fabric

RAW = "the loop by hand"
IMPORTS = {
    "core": "from core import Trainer",
    "Lightning": "import lightning",
    "Accelerate": "import accelerate",
}


class LightningNet(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 2)

    training_step = Net.training_step
    configure_optimizers = Net.configure_optimizers


def lightning_trainer(num_steps: int) -> None:
    with tempfile.TemporaryDirectory() as root, contextlib.redirect_stdout(io.StringIO()):
        options = {"accelerator": "cpu", "max_epochs": 1, "default_root_dir": root, **OFF}
        lightning.Trainer(**options).fit(LightningNet(), Batches(num_steps))


def lightning_fabric(num_steps: int) -> None:
    fabric, module = lightning.Fabric(accelerator="cpu"), LightningNet()
    fabric.launch()
    model, optimizer = fabric.setup(module, module.configure_optimizers())
    model.mark_forward_method("training_step")
    for batch_idx, batch in enumerate(Batches(num_steps)):
        fabric.backward(model.training_step(batch, batch_idx))
        optimizer.step()
        optimizer.zero_grad()


def accelerate_loop(num_steps: int) -> None:
    accelerator, module = accelerate.Accelerator(cpu=True), Net()
    model, optimizer = accelerator.prepare(module, module.configure_optimizers())
    for batch_idx, batch in enumerate(Batches(num_steps)):
        accelerator.backward(model.training_step(batch, batch_idx))
        optimizer.step()
        optimizer.zero_grad()


CONTENDERS = {
    RAW: raw_loop,
    "core, Fabric": fabric_loop(lambda: Fabric(accelerator="cpu"), Net),
    "Lightning, Fabric": lightning_fabric,
    "Accelerate": accelerate_loop,
    "core, Trainer": core_trainer(**OFF),
    "Lightning, Trainer": lightning_trainer,
}


def compare_steps(num_steps: int, num_rounds: int) -> Table:
    for run in CONTENDERS.values():
        run(50)
    calls = {
        name: per_step([short_and_long(count_calls(run), 300)], 300)
        for name, run in CONTENDERS.items()
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(num_rounds):
        for name, run in CONTENDERS.items():
            times[name].append(short_and_long(cpu_us(run), num_steps))
    table = Table("a step", "calls", "calls more", "CPU time, of the loop by hand's")
    us = {name: per_step(times[name], num_steps) for name in CONTENDERS}
    for name in CONTENDERS:
        more = f"{calls[name] - calls[RAW]:+.0f}"
        table.add_row(name, f"{calls[name]:.0f}", more, f"{us[name] / us[RAW]:.2f}")
    return table


IMPORT = """
import sys, time
began = time.process_time()
import torch
torch_s, num_modules = time.process_time() - began, len(sys.modules)
{line}
print((time.process_time() - began) / torch_s, len(sys.modules) - num_modules)
"""


def compare_imports(num_rounds: int) -> Table:
    # From compiled files, as installed packages are.
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    rounds: dict[str, list[list[str]]] = {name: [] for name in IMPORTS}
    for _ in range(num_rounds + 1):
        for name, line in IMPORTS.items():
            command = [sys.executable, "-c", IMPORT.format(line=line)]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            rounds[name].append(done.stdout.split()[-2:])
    table = Table(
        f"import, {num_rounds} rounds", "modules beside torch's", "CPU time, of `import torch`'s"
    )
    for name, cells in rounds.items():
        # The first round has compiled what wasn't.
        ratio = statistics.median(float(each) for each, _ in cells[1:])
        table.add_row(name, f"{int(cells[0][1]):,}", f"{ratio:.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--only", default="", help="parts whose name contains this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    console = Console(width=120)
    console.print(
        f"core, Lightning {version('lightning')}, Accelerate {version('accelerate')}, torch "
        f"{torch.__version__}"
    )
    parts = {
        # Those that fork come first, while this process has no threads.
        "strategies": compare_strategies,
        "means": compare_means,
        "resumed": compare_resumes,
        "killed": lambda: compare_kills(arguments.kills),
        "damaged": compare_damage,
        "saving": lambda: compare_saving(arguments.rounds // 2),
        "steps": lambda: compare_steps(arguments.steps, arguments.rounds),
        "imports": lambda: compare_imports(max(3, arguments.rounds // 3)),
    }
    for name, compare in parts.items():
        if arguments.only in name:
            console.print(compare())


if __name__ == "__main__":
    main()
