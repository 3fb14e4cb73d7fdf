"""What it costs to get going: the import, the way to the first step, and a launch in two processes.

    python benchmarks/startup.py

CPU seconds of whole processes, children included, as the operating system counts them; contenders take turns, and the
figures are medians over the rounds. Each comparison is with what a user would write by hand on torch alone.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

MODEL = """
import torch
from torch import nn

model = nn.Linear(32, 2)
batches = [torch.ones(4, 32)]
"""

IMPORT_TORCH = "import torch"
IMPORT_CORE = "import torch\nfrom core import Trainer"
COUNT_MODULES = (
    "import sys, torch\nbefore = set(sys.modules)\nfrom core import Trainer\nprint(len(set(sys.modules) - before))"
)

RAW_STEP = (
    MODEL
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)

TRAINER_STEP = (
    MODEL
    + """
from core import Module, Trainer

class Net(Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def training_step(self, batch):
        return self.model(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
Trainer(accelerator="cpu", max_steps=1, use_distributed_sampler=False, **off).fit(Net(), batches)
"""
)

RAW_LAUNCH = (
    MODEL
    + """
import os, socket, subprocess, sys, time
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if "RANK" not in os.environ:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    child = subprocess.Popen([sys.executable, __file__], env=os.environ | {"RANK": "1"})
    os.environ["RANK"] = "0"
dist.init_process_group("gloo")
model = DistributedDataParallel(model)
"""
    + RAW_STEP.removeprefix(MODEL)
    + """
dist.destroy_process_group()
time.sleep(0.05)  # without it gloo aborts one run in a few, as the interpreter ends
if os.environ["RANK"] == "0":
    sys.exit(child.wait())
"""
)

TRAINER_LAUNCH = TRAINER_STEP.replace('accelerator="cpu"', 'accelerator="cpu", strategy="ddp", devices=2')

COMPARISONS = {
    "import": ("import torch", IMPORT_TORCH, "from core import Trainer", IMPORT_CORE),
    "first step": ("by hand", RAW_STEP, "Trainer", TRAINER_STEP),
    "ddp launch": ("by hand", RAW_LAUNCH, "Trainer", TRAINER_LAUNCH),
}


def cpu_s(script: Path) -> float:
    """CPU seconds of a script and its children."""
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{script} ended with status {status}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    os.environ["OMP_NUM_THREADS"] = "1"
    counted = subprocess.run([sys.executable, "-c", COUNT_MODULES], capture_output=True, text=True, check=True)
    table = Table("what", "by hand, CPU s", "core, CPU s", "difference, ms", "ratio")
    with tempfile.TemporaryDirectory() as folder:
        for name, (_, raw, _, ours) in COMPARISONS.items():
            raw_s, ours_s = measure(Path(folder), raw, ours, rounds)
            table.add_row(
                name, f"{raw_s:.3f}", f"{ours_s:.3f}", f"{(ours_s - raw_s) * 1e3:.0f}", f"{ours_s / raw_s:.3f}"
            )
    console = Console()
    console.print(table)
    console.print(f"`from core import Trainer` adds {counted.stdout.strip()} modules to `import torch`.")


def measure(folder: Path, raw: str, ours: str, rounds: int) -> tuple[float, float]:
    """Medians of two scripts that take turns."""
    scripts = [folder / "raw.py", folder / "ours.py"]
    for script, source in zip(scripts, (raw, ours), strict=True):
        script.write_text(source)
        cpu_s(script)  # compiles what is imported
    samples = [[cpu_s(script) for script in scripts] for _ in range(rounds)]
    raw_s, ours_s = (statistics.median(column) for column in zip(*samples, strict=True))
    return raw_s, ours_s


if __name__ == "__main__":
    main()
