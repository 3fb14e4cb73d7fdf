"""Thirty hangs and twenty runs that are merely slow: whether the watch over ranks names the right rank and place.

    python benchmarks/hangs.py [--limit 3] [--only TEXT] [--kind hangs|healthy] [--at-once 1]

Each run is tests/watch/hanging.py with two ranks, which wait most of the time: several runs may go side by side. A hang
counts as found if the error of the run names the rank and the line that stands still. `stood still` is what the verdict
says, `of its limit` what was allowed, and `ended in` the time from the verdict to the end of the program. A rank that
computes has ten times the limit.
"""

import argparse
import os
import re
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
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
_starts = threading.Lock()
"""Held while a program is started: its server hears one at a time."""


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


@dataclass
class Outcome:
    """The outcome of a run.

    Attributes:
        code: of its program.
        text: that it wrote.
        stood_s: seconds that the ranks have stood still for, as the verdict says; None without a verdict.
        ended_s: seconds from the verdict to the end of the program.
    """

    code: int
    text: str
    stood_s: int | None
    ended_s: float


def outcome_of(run: Run, limit_s: float) -> Outcome:
    """Run it to its end."""
    command = TORCHRUN if run.launcher == "torchrun" else [sys.executable]
    most_s = 300 + 25 * limit_s
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.monotonic()
        with _starts:
            process = programs.start(
                [*command, str(HANGING), run.how, run.strategy, run.launcher, str(limit_s), folder],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                merge_errors=True,
            )
        verdict_s = None
        while process.poll() is None and time.monotonic() - began_s < most_s:
            time.sleep(0.1)
            if verdict_s is None and any(Path(folder).glob("core-hang-*")):
                verdict_s = time.monotonic()
        ended_s = time.monotonic()
        if process.poll() is None:
            process.kill()
        code, text = process.wait(), process.output()
    waited = re.search(r"come forward for (\d+) s", text)
    return Outcome(code, text, int(waited[1]) if waited else None, ended_s - (verdict_s or ended_s))


def is_right(kind: str, run: Run, outcome: Outcome) -> bool:
    """True if the verdict names the right rank and line, or nobody was accused."""
    if kind == "healthy":
        return outcome.code == 0 and outcome.stood_s is None
    rank, words, line = HANGS[run.how]
    found = re.search(rf"(?<!while )[Rr]ank {rank} {words} at \S*hanging.py:(\d+) in ", outcome.text)
    return outcome.code != 0 and found is not None and int(found[1]) - line_of(line) in (0, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=3.0)
    parser.add_argument("--only", default="", help="runs whose words contain this")
    parser.add_argument("--kind", choices=("all", "hangs", "healthy"), default="all")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side")
    arguments = parser.parse_args()
    chosen = [
        (kind, run)
        for kind, runs in (("hangs", hangs()), ("healthy", healthy()))
        for run in runs
        if arguments.kind in ("all", kind) and arguments.only in f"{run.how} {run.strategy} {run.launcher}"
    ]
    table = Table("run", "strategy", "launcher", "code", "stood still", "of its limit", "ended in", "right")
    numbers = {"hangs": [0, 0], "healthy": [0, 0]}
    with ThreadPoolExecutor(arguments.at_once) as pool:
        outcomes = pool.map(lambda each: outcome_of(each[1], arguments.limit), chosen)
        for (kind, run), outcome in zip(chosen, outcomes, strict=True):
            right = is_right(kind, run, outcome)
            numbers[kind][0] += right
            numbers[kind][1] += 1
            limit = f"{arguments.limit * (10 if run.how == 'spinning' else 1):g} s"
            stood = ("", limit, "")
            if outcome.stood_s is not None:
                stood = (f"{outcome.stood_s} s", limit, f"{outcome.ended_s:.1f} s")
            cells = (run.how, run.strategy, run.launcher, str(outcome.code), *stood, "yes" if right else "NO")
            table.add_row(*cells)
            print(*cells, flush=True)
            if not right:
                print(outcome.text[-4000:], flush=True)
    Console(width=110).print(table)
    for kind, (right, number) in numbers.items():
        print(f"{kind}: {right} of {number} right")


if __name__ == "__main__":
    main()
