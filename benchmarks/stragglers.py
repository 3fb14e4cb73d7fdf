"""Seeded slow ranks and healthy runs: whether StragglerDetection names the right rank and phase,
and else nobody.

    python benchmarks/stragglers.py [--healthy 20] [--load 0] [--only TEXT] [--at-once 2] [--strategy ddp]

Each run trains with 2 to 4 ranks on the CPU. A step takes 50 ms, most of it slept as a program
sleeps that waits for its GPU, so that ranks don't compete for cores. Slow runs: for each phase,
share and number of ranks one rank, drawn by the run's seed, takes 10, 20 or 50 % of a step longer
there, from the start or from step 200 on. A run is right if the rank and the phase are named,
within two minutes, and nobody else is. Healthy runs last 75 seconds, and are right if nobody is
named. `--load N` lets N processes compute all the while.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, Dataset

from core import Module, Trainer
from core.callbacks import Callback, StragglerDetection

STEP_S = 0.05
PARTS_S = {
    "data": 0.2 * STEP_S,
    "forward": 0.4 * STEP_S,
    "backward": 0.2 * STEP_S,
    "optimizer": 0.2 * STEP_S,
}
LATE_STEP = 200
LIMIT_S, HEALTHY_S = 120.0, 75.0


@dataclass(frozen=True)
class Run:
    """A run: of so many ranks, with a slow one perhaps."""

    seed: int
    num_ranks: int
    strategy: str
    phase: str = ""
    share: float = 0.0
    rank: int = -1
    onset: int = 0

    def __str__(self) -> str:
        slow = (
            f"{self.phase} +{self.share:.0%} on rank {self.rank} from step {self.onset}"
            if self.phase
            else "healthy"
        )
        return f"{self.num_ranks} ranks, {slow}"


def slow_runs(strategy: str) -> list[Run]:
    """Each phase, share and number of ranks once."""
    runs = []
    for seed, (phase, share, num_ranks) in enumerate(
        product(["data", "forward", "optimizer"], [0.1, 0.2, 0.5], [2, 3, 4])
    ):
        draw = random.Random(seed)
        runs.append(
            Run(
                seed,
                num_ranks,
                strategy,
                phase,
                share,
                draw.randrange(num_ranks),
                draw.choice([0, LATE_STEP]),
            )
        )
    return runs


def healthy_runs(number: int, strategy: str) -> list[Run]:
    """So many, of 2 to 4 ranks."""
    return [Run(seed, 2 + seed % 3, strategy) for seed in range(number)]


class Naps:
    """The naps of a rank in each phase, which are longer where it is the slow one."""

    def __init__(self, run: Run) -> None:
        self.run, self.step, self.rank = run, 0, -1

    def take(self, phase: str) -> None:
        run = self.run
        is_slow = phase == run.phase and self.rank == run.rank and self.step >= run.onset
        time.sleep(PARTS_S[phase] + (run.share * STEP_S if is_slow else 0.0))


class Samples(Dataset):
    """Endless for this purpose."""

    def __init__(self, naps: Naps) -> None:
        self.naps = naps

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        self.naps.take("data")
        return torch.full((64,), index / len(self))


class NappingSGD(torch.optim.SGD):
    """SGD that takes its time."""

    naps: Naps

    def step(self, closure=None):
        self.naps.take("optimizer")
        return super().step(closure)


class Net(Module):
    """A small network, whose passes take their time."""

    def __init__(self, naps: Naps) -> None:
        super().__init__()
        self.naps = naps
        self.net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch):
        self.naps.take("forward")
        loss = self.net(batch.repeat(4, 1)).square().mean()
        loss.register_hook(lambda _: self.naps.take("backward"))
        return loss

    def configure_optimizers(self):
        optimizer = NappingSGD(self.parameters(), lr=0.01)
        optimizer.naps = self.naps
        return optimizer


class Note(Callback):
    """Counts steps, and ends the run when somebody is named."""

    def __init__(self, naps: Naps, detection: StragglerDetection) -> None:
        self.naps, self.detection, self.onset_s, self.named_s = (
            naps,
            detection,
            time.monotonic(),
            0.0,
        )

    def on_train_start(self, trainer, module):
        self.naps.rank, self.onset_s = trainer.global_rank, time.monotonic()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.naps.step = trainer.global_step
        if trainer.global_step == self.naps.run.onset:
            self.onset_s = time.monotonic()
        if self.detection.stragglers and not self.named_s:
            self.named_s = time.monotonic()
        limit_s = LIMIT_S if self.naps.run.phase else HEALTHY_S
        if self.named_s or time.monotonic() - self.onset_s > limit_s:
            trainer.should_stop = True


def train(run: Run, target: str) -> None:
    """One run, in a process of its own. Rank 0 writes what was found."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    naps, detection = Naps(run), StragglerDetection()
    note = Note(naps, detection)
    off = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=run.num_ranks,
        strategy=run.strategy,
        max_epochs=1,
        callbacks=[detection, note],
        **off,
    )
    trainer.fit(Net(naps), DataLoader(Samples(naps)))
    if trainer.is_global_zero:
        found = [asdict(each) for each in detection.stragglers]
        content = {
            "found": found,
            "steps": trainer.global_step,
            "passed_s": note.named_s - note.onset_s,
        }
        Path(target).write_text(json.dumps(content), encoding="utf-8")


def outcome_of(run: Run) -> dict:
    """The findings of a run, from its own process."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "found.json"
        command = [
            sys.executable,
            __file__,
            "--one",
            json.dumps(asdict(run)),
            "--target",
            str(target),
        ]
        done = subprocess.run(
            command,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if not target.exists():
            print(done.stderr[-3000:], file=sys.stderr)
            return {"found": [], "error": True}
        return json.loads(target.read_text(encoding="utf-8"))


def judge(run: Run, outcome: dict) -> str:
    """`right`, or what is wrong."""
    found = [(each["rank"], each["phase"]) for each in outcome["found"]]
    wanted = [(run.rank, run.phase)] if run.phase else []
    if "error" in outcome:
        return "failed"
    if found == wanted:
        return "right"
    if not found:
        return "nobody named"
    return "; ".join(f"rank {rank} in {phase}" for rank, phase in found) + " named"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--healthy", type=int, default=20)
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--one")
    parser.add_argument("--target")
    arguments = parser.parse_args()
    if arguments.one:
        train(Run(**json.loads(arguments.one)), arguments.target)
        return
    runs = [*slow_runs(arguments.strategy), *healthy_runs(arguments.healthy, arguments.strategy)]
    runs = [run for run in runs if arguments.only in str(run)]
    busy = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
        for _ in range(arguments.load)
    ]
    table = Table("run", "outcome", "behind", "steps since", "seconds since", "line")
    counts: dict[str, list[bool]] = {"slow": [], "healthy": []}
    try:
        with ThreadPoolExecutor(arguments.at_once) as pool:
            for run, outcome in zip(runs, pool.map(outcome_of, runs), strict=True):
                verdict = judge(run, outcome)
                counts["slow" if run.phase else "healthy"].append(verdict == "right")
                first = outcome["found"][0] if outcome["found"] else None
                row = ["", "", "", ""]
                if first is not None:
                    line = (
                        Path(first["line"].partition(" in ")[0]).name
                        + first["line"][first["line"].find(" in ") :]
                    )
                    row = [
                        f"{first['share']:.1%}",
                        str(first["step"] - run.onset),
                        f"{outcome['passed_s']:.0f}",
                        line,
                    ]
                table.add_row(str(run), verdict, *row)
                print(run, verdict, *row, flush=True)
    finally:
        for process in busy:
            process.kill()
    Console(width=180).print(table)
    loads = ", ".join(f"{each:.0f}" for each in os.getloadavg())
    for kind, right in counts.items():
        print(f"{kind}: {sum(right)} of {len(right)} right; load averages {loads}")


if __name__ == "__main__":
    main()
