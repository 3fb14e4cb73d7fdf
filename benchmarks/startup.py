"""The cost of getting going: the import, the way to the first step, and a launch in two processes.

    python benchmarks/startup.py
    python benchmarks/startup.py --seconds 120 --only ddp

CPU seconds of whole processes, children included, as the operating system counts them; contenders
take turns. A figure is the median over the rounds, a ratio the median of the rounds' own. Each
comparison is with what a user would write by hand on torch alone, with the same loader and
optimizer. Everything is imported from compiled files, as an installed package is: where Python
isn't allowed to write those (PYTHONDONTWRITEBYTECODE), these processes are.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

IMPORT_TORCH = "import torch"
IMPORT_CORE = "import torch\nfrom core import Trainer"
COUNT_MODULES = (
    "import sys, torch\nbefore = set(sys.modules)\nfrom core import "
    "Trainer\nprint(len(set(sys.modules) - before))"
)

MODEL = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(32, 2)
data = TensorDataset(torch.ones(8, 32))
"""

LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (batch,) in loader:
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

RAW_STEP = MODEL + "loader = DataLoader(data, batch_size=8)\n" + LOOP

TRAINER = """
from core import Module, Trainer

class Net(Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def training_step(self, batch):
        return self.model(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""

OFF = (
    "logger=False, enable_checkpointing=False, enable_progress_bar=False, "
    "enable_model_summary=False"
)


def trainer_script(options: str, batch_size: int = 8) -> str:
    """One epoch of one step a rank."""
    fit = (
        f"Trainer(accelerator='cpu', max_epochs=1, {options}).fit(Net(), DataLoader(data, "
        f"batch_size={batch_size}))\n"
    )
    return MODEL + TRAINER + fit


RAW_LAUNCH = (
    MODEL
    + """
import os, socket, subprocess, sys, time
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

if "RANK" not in os.environ:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    child = subprocess.Popen([sys.executable, __file__], env=os.environ | {"RANK": "1"})
    os.environ["RANK"] = "0"
dist.init_process_group("gloo")
model = DistributedDataParallel(model)
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
"""
    + LOOP
    + """
dist.destroy_process_group()
time.sleep(0.05)  # without it gloo aborts one run in a few, as the interpreter ends
if os.environ["RANK"] == "0":
    sys.exit(child.wait())
"""
)


@dataclass
class Comparison:
    """Two scripts, and how many times the first one's CPU the second may take; None where nothing
    is promised.
    """

    by_hand: str
    ours: str
    limit: float | None = None
    limit_ms: float | None = None


COMPARISONS = {
    "import": Comparison(IMPORT_TORCH, IMPORT_CORE, limit_ms=50),
    "first step, everything off": Comparison(RAW_STEP, trainer_script(OFF), limit=1.03),
    "first step, defaults": Comparison(RAW_STEP, trainer_script("")),
    "ddp launch, everything off": Comparison(
        RAW_LAUNCH, trainer_script(f"strategy='ddp', devices=2, {OFF}", batch_size=4), limit=1.1
    ),
    "ddp launch, defaults": Comparison(
        RAW_LAUNCH, trainer_script("strategy='ddp', devices=2", batch_size=4)
    ),
}


ROW = "{:28}{:>7}{:>16}{:>13}{:>10}{:>7}{:>7}{:>7}"


def compile_core() -> None:
    """Compile what pip has not: a checkout that was installed in place."""
    for name in ("core", "core_ddp"):
        if (found := importlib.util.find_spec(name)) is not None and found.origin is not None:
            compileall.compile_dir(Path(found.origin).parent, quiet=2)


def cpu_s(script: Path) -> float:
    """CPU seconds of a script and its children."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    process = subprocess.Popen(
        [sys.executable, script], cwd=script.parent, env=environment, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{script} ended with status {status}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "--seconds",
        type=float,
        default=15,
        help="for which a comparison begins rounds; at least two",
    )
    parser.add_argument("--only", default="", help="comparisons whose name contains this")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    counted = subprocess.run(
        [sys.executable, "-c", COUNT_MODULES], capture_output=True, text=True, check=True
    )
    compile_core()
    columns = (
        "what",
        "rounds",
        "by hand, CPU s",
        "core, CPU s",
        "more, ms",
        "ratio",
        "limit",
        "holds",
    )
    print(ROW.format(*columns), flush=True)
    for name, comparison in COMPARISONS.items():
        if arguments.only in name:
            with tempfile.TemporaryDirectory() as folder:
                cells = measure(Path(folder), comparison, arguments.seconds)
            print(ROW.format(name, *cells), flush=True)
    num_modules = int(counted.stdout)
    verdict = "holds" if num_modules <= 60 else "does not hold"
    print(
        f"`from core import Trainer` adds {num_modules} modules to `import torch`; the limit of 60 "
        f"{verdict}."
    )


def measure(folder: Path, comparison: Comparison, seconds: float) -> tuple[str, ...]:
    """A row: two scripts that take turns, as long as there is time for another round."""
    scripts = [folder / "by_hand.py", folder / "ours.py"]
    for script, source in zip(scripts, (comparison.by_hand, comparison.ours), strict=True):
        script.write_text(source)
    rounds: list[list[float]] = []
    began = time.monotonic()
    while len(rounds) < 2 or (time.monotonic() - began) * (1 + 1 / len(rounds)) < seconds:
        rounds.append([cpu_s(script) for script in scripts])
    by_hand_s, ours_s = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(ours / by_hand for by_hand, ours in rounds)
    difference_ms = statistics.median(ours - by_hand for by_hand, ours in rounds) * 1e3
    limit, holds = "", ""
    if comparison.limit is not None:
        limit, holds = f"{comparison.limit}", "yes" if ratio <= comparison.limit else "NO"
    if comparison.limit_ms is not None:
        limit, holds = (
            f"{comparison.limit_ms:.0f} ms",
            "yes" if difference_ms <= comparison.limit_ms else "NO",
        )
    return (
        str(len(rounds)),
        f"{by_hand_s:.3f}",
        f"{ours_s:.3f}",
        f"{difference_ms:.0f}",
        f"{ratio:.3f}",
        limit,
        holds,
    )


if __name__ == "__main__":
    main()
