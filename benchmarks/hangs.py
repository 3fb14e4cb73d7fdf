"""Thirty hangs and twenty runs that are merely slow: whether the watch over ranks names the right rank and place.

    python benchmarks/hangs.py [--limit 3] [--only TEXT] [--kind hangs|healthy]

Each run is tests/watch/hanging.py with two ranks. A hang counts as found if the error of the run names the rank and the
line that stands still. `stood still` is what the verdict says, `of its limit` what was allowed, and `ended in` the time
from the verdict to the end of the program. A rank that computes has ten times the limit.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from core_testing import programs

HANGING = Path(__file__).parents[1] / "tests" / "watch" / "hanging.py"
STRATEGIES = ("ddp", "fsdp", "deepspeed")
TORCHRUN = [*programs.TORCHRUN, "--standalone", "--nproc-per-node=2"]
HANGS = {
    "asleep": (1, "is asleep", "time.sleep(600)"),
    "spinning": (1, "computes", "while True:"),
    "stopped": (1, "is stopped by a signal", "SIGSTOP)"),
    "extra": (1, "waits for the others", "    fabric.barrier()"),
    "fewer": (1, "waits for the others", "all steps are done"),
}
SLOW = ("computes", "collects", "saves", "validates")


@dataclass
class Run:
    how: str
    strategy: str
    launcher: str


def hangs() -> list[Run]:
    """Every hang with every strategy, by one of core's launchers and by torchrun."""
    pairs = list(product(HANGS, STRATEGIES))
    own = [Run(*pair, ("script", "spawn")[number % 2]) for number, pair in enumerate(pairs)]
    return own + [Run(*pair, "torchrun") for pair in pairs]


def healthy() -> list[Run]:
    """Every way of being slow, with five of the nine combinations."""
    combinations = [
        ("ddp", "script"),
        ("ddp", "torchrun"),
        ("fsdp", "spawn"),
        ("fsdp", "script"),
        ("deepspeed", "script"),
    ]
    return [Run(how, *combination) for how, combination in product(SLOW, combinations)]


def line_of(text: str) -> int:
    lines = HANGING.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def start(run: Run, limit_s: float) -> tuple[int, str, float, float]:
    """The code, what was written, seconds from start to the verdict, and from there to the end."""
    command = TORCHRUN if run.launcher == "torchrun" else [sys.executable]
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.monotonic()
        process = programs.start(
            [*command, str(HANGING), run.how, run.strategy, run.launcher, str(limit_s), folder],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            merge_errors=True,
        )
        verdict_s = None
        while process.poll() is None and time.monotonic() - began_s < 240:
            time.sleep(0.1)
            if verdict_s is None and any(Path(folder).glob("core-hang-*")):
                verdict_s = time.monotonic()
        ended_s = time.monotonic()
        if process.poll() is None:
            process.kill()
        code = process.wait()
        text = process.output()
    verdict_s = verdict_s or ended_s
    return code, text, verdict_s - began_s, ended_s - verdict_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=3.0)
    parser.add_argument("--only", default="", help="runs whose words contain this")
    parser.add_argument("--kind", choices=("all", "hangs", "healthy"), default="all")
    arguments = parser.parse_args()
    table = Table("run", "strategy", "launcher", "code", "stood still", "of its limit", "ended in", "right")
    numbers = {"hangs": [0, 0], "healthy": [0, 0]}
    for kind, runs in (("hangs", hangs()), ("healthy", healthy())):
        for run in runs if arguments.kind in ("all", kind) else ():
            if arguments.only not in f"{run.how} {run.strategy} {run.launcher}":
                continue
            code, text, _, ended_s = start(run, arguments.limit)
            waited = re.search(r"come forward for (\d+) s", text)
            if kind == "hangs":
                rank, words, line = HANGS[run.how]
                found = re.search(rf"[Rr]ank {rank} {words} at \S*hanging.py:(\d+) in ", text)
                right = code != 0 and found is not None and int(found[1]) - line_of(line) in (0, 1)
            else:
                right = code == 0 and waited is None
            numbers[kind][0] += right
            numbers[kind][1] += 1
            limit = arguments.limit * (10 if run.how == "spinning" else 1)
            cells = (f"{waited[1]} s", f"{limit:g} s", f"{ended_s:.1f} s") if waited else ("", f"{limit:g} s", "")
            table.add_row(run.how, run.strategy, run.launcher, str(code), *cells, "yes" if right else "NO")
            print(run, code, *cells, right, flush=True)
            if not right:
                print(text[-3000:], flush=True)
    Console(width=110).print(table)
    for kind, (right, number) in numbers.items():
        print(f"{kind}: {right} of {number} right")


if __name__ == "__main__":
    main()
