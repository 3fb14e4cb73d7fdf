"""Core beside Lightning and Accelerate: what a step costs, what an import costs, and who notices a damaged checkpoint.

    python -m pip install lightning accelerate
    python benchmarks/against_others.py

A step: as in `step_overhead.py`, the same tiny model, batches and SGD in one process, contenders in turns, with
loggers, bars, checkpoints and summaries off. Calls are Python's and C's. An import: CPU time of a whole process over
that of one which imports torch alone, medians of the rounds. A damaged checkpoint: one bit is flipped at places all
over what was saved, one at a time, and what then loads is compared with what was saved.
"""

import argparse
import contextlib
import io
import logging
import shutil
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import accelerate
import lightning
import psutil
import torch
from rich.console import Console
from rich.table import Table
from step_overhead import OFF, Batches, Net, count_calls, cpu_us, fabric_loop, per_step, raw_loop, short_and_long
from step_overhead import trainer_loop as core_trainer
from torch import nn

from core import Fabric

RAW = "the loop by hand"
IMPORTS = {"core": "from core import Trainer", "Lightning": "import lightning", "Accelerate": "import accelerate"}
NUM_FLIPS = 40


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
    calls = {name: per_step([short_and_long(count_calls(run), 300)], 300) for name, run in CONTENDERS.items()}
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


def cpu_s_of(source: str) -> float:
    process = psutil.Popen([sys.executable, "-c", source], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    process.wait()
    used = psutil.Process().cpu_times()
    return used.children_user + used.children_system


def compare_imports(num_rounds: int) -> Table:
    sources = {"torch": "import torch", **{name: f"import torch; {line}" for name, line in IMPORTS.items()}}
    rounds: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(num_rounds + 1):
        for name, source in sources.items():
            before = cpu_s_of("")
            rounds[name].append(cpu_s_of(source) - before)
    table = Table("import", "modules beside torch's", "CPU time, of `import torch`'s")
    for name, line in IMPORTS.items():
        # The first round has compiled what wasn't.
        ratios = [own / base for own, base in zip(rounds[name][1:], rounds["torch"][1:], strict=True)]
        source = f"import sys, torch; before = len(sys.modules); {line}; print(len(sys.modules) - before)"
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
        table.add_row(name, f"{int(done.stdout.split()[-1]):,}", f"{statistics.median(ratios):.2f}")
    return table


def fresh_layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(300, 300)


def fabric_state(fabric: Any, folder: Path) -> tuple[Callable[[], object], Callable[[], nn.Module]]:
    fabric.launch()
    model = fabric.setup(fresh_layer())
    state = {"model": model}

    def load() -> nn.Module:
        fabric.load(folder / "saved", state)
        return model

    return lambda: fabric.save(folder / "saved", state), load


def accelerate_state(folder: Path) -> tuple[Callable[[], object], Callable[[], nn.Module]]:
    accelerator = accelerate.Accelerator(cpu=True)
    model = accelerator.prepare(fresh_layer())

    def load() -> nn.Module:
        accelerator.load_state(str(folder / "saved"))
        return model

    return lambda: accelerator.save_state(str(folder / "saved")), load


STATES = {
    "core": lambda folder: fabric_state(Fabric(accelerator="cpu"), folder),
    "Lightning": lambda folder: fabric_state(lightning.Fabric(accelerator="cpu"), folder),
    "Accelerate": accelerate_state,
}


def flipped(folder: Path) -> Counter[str]:
    """Count the fates of a checkpoint of which one bit has flipped."""
    save, load = STATES[folder.name](folder)
    save()
    shutil.copytree(folder, whole := folder.with_name(f"{folder.name}-whole"))
    expected, outcomes = load().state_dict()["weight"].clone(), Counter[str]()
    files = [(file, file.stat().st_size) for file in sorted(whole.rglob("*")) if file.is_file()]
    total = sum(size for _, size in files)
    for number in range(NUM_FLIPS):
        shutil.rmtree(folder)
        shutil.copytree(whole, folder)
        offset = (2 * number + 1) * total // (2 * NUM_FLIPS)
        for file, size in files:
            if offset < size:
                damaged = folder / file.relative_to(whole)
                content = bytearray(damaged.read_bytes())
                content[offset] ^= 0b100
                damaged.write_bytes(content)
                break
            offset -= size
        try:
            same = torch.equal(load().state_dict()["weight"], expected)
        except Exception:
            outcomes["refused"] += 1
        else:
            outcomes["right all the same" if same else "wrong without a word"] += 1
    return outcomes


def compare_damage() -> Table:
    table = Table("one bit flipped", "refused", "right all the same", "wrong without a word")
    with tempfile.TemporaryDirectory() as root:
        for name in IMPORTS:
            (folder := Path(root) / name).mkdir()
            outcomes = flipped(folder)
            table.add_row(
                f"{name}, {NUM_FLIPS} times", *(str(outcomes[str(column.header)]) for column in table.columns[1:])
            )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    console = Console(width=100)
    console.print(
        f"core, Lightning {version('lightning')}, Accelerate {version('accelerate')}, torch {torch.__version__}"
    )
    console.print(compare_damage())
    console.print(compare_steps(arguments.steps, arguments.rounds))
    console.print(compare_imports(max(3, arguments.rounds // 3)))


if __name__ == "__main__":
    main()
