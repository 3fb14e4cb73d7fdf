"""Fifty hangs and twenty runs that are merely slow: whether the watch over ranks names the right
rank and place.

    python benchmarks/hangs.py [--limit 4] [--end 8] [--load 20] [--only TEXT] [--kind hangs|healthy] [--at-once 1]

Each run is tests/watch/hanging.py with two ranks, which wait most of the time: several runs may go
side by side. A hang is right if the first report, and the error that ends the run, name the rank
and the line that stands still, each within twice its limit. A rank that computes would end after
ten times `--end`: such a run is stopped once it was reported, unless `--to-the-end`. A slow run
lasts longer than its limits, and is right if it comes to its end. `reported` and `ended` are the
seconds that the ranks had stood still for, `over` the time from the verdict to the end of the
program.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from core_testing import programs

HANGING = Path(__file__).parents[1] / "tests" / "watch" / "hanging.py"
TORCHRUN = [*programs.TORCHRUN, "--standalone", "--nproc-per-node=2"]
HANGS = {
    "asleep": ("is asleep", "time.sleep(600)"),
    "spinning": ("computes", "while True:"),
    "regex": ("computes", 're.match(r"(a+)+$"'),
    "native": ("does not answer", "ctypes.PyDLL(None).sleep(600)"),
    "stopped": ("is stopped by a signal", "SIGSTOP)"),
    "extra": ("waits for the others", "    fabric.barrier()"),
    "fewer": ("waits for the others", "all steps are done"),
}
AT_WORK, AT_ONCE = ("spinning", "regex"), ("extra", "fewer")
SLOW = ("computes", "collects", "validates", "pipes", "compiles", "asks", "saves")
FAR = ("ddp", "torchrun")
NEAR = [("ddp", "script"), ("ddp", "spawn"), ("fsdp", "script")]
_starts = threading.Lock()
"""Held while a program is started: its server hears one at a time."""


@dataclass
class Run:
    how: str
    strategy: str
    launcher: str


def hangs() -> list[Run]:
    """Fifty: where a rank sleeps, in loops of one's own and in the Trainer; what else a rank does;
    unequal calls.
    """
    steps = [f"asleep@{place}" for place in ("first", "fourth", "usual", "late")]
    stages = [f"asleep@{place}" for place in ("validation", "checkpoint", "on_fit_end", "teardown")]
    others = ["spinning@first", "spinning", "regex", "native", "stopped"]
    chosen = [
        *product(steps + stages, [*NEAR, FAR]),
        *product(others, NEAR[:2]),
        *product(AT_ONCE, [*NEAR, FAR]),
    ]
    return [Run(how, *combination) for how, combination in chosen]


def healthy() -> list[Run]:
    """Every way of being slow, with three combinations; a slow disk with two."""
    return [
        Run(how, *each)
        for how, each in product(SLOW, [*NEAR[:2], FAR])
        if (how, each) != ("saves", FAR)
    ]


def line_of(text: str) -> int:
    lines = HANGING.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@dataclass
class Outcome:
    """The outcome of a run.

    Attributes:
        code: of its program; None if it was stopped.
        text: that it wrote.
        reported: the first report of the standstill.
        error: that ended the run.
        over_s: seconds from that to the end of the program.
    """

    code: int | None
    text: str
    reported: str
    error: str
    over_s: float


def outcome_of(run: Run, arguments: argparse.Namespace) -> Outcome:
    """Run it to its end, or until it was reported."""
    command = TORCHRUN if run.launcher == "torchrun" else [sys.executable]
    stops = run.how.partition("@")[0] in AT_WORK and not arguments.to_the_end
    with tempfile.TemporaryDirectory() as folder:
        began_s, ended_s, code = time.monotonic(), None, None
        own = [
            str(HANGING),
            run.how,
            run.strategy,
            run.launcher,
            str(arguments.limit),
            folder,
            str(arguments.end),
        ]
        with _starts:
            process = programs.start(
                [*command, *own], env=os.environ | {"OMP_NUM_THREADS": "1"}, merge_errors=True
            )
        while (
            code := process.poll()
        ) is None and time.monotonic() - began_s < 300 + 15 * arguments.end:
            time.sleep(0.2)
            text = process.output()
            if (
                ended_s is None
                and (stops or "CORE_WATCH=report" in text)
                and "have made no progress for" in text
            ):
                ended_s = time.monotonic()
                if stops:
                    break
        over_s = time.monotonic() - (ended_s or time.monotonic())
        if code is None:
            end(process)
        text = process.output()
    reported = re.search(
        r"^core: (The ranks have made no progress for .*)$(?=\n  rank)", text, re.MULTILINE
    )
    error = re.search(r"^core\.HangError: (.*)$", text, re.MULTILINE)
    return Outcome(code, text, reported[1] if reported else "", error[1] if error else "", over_s)


def end(process: programs.Program) -> None:
    """End a program and all that it has started."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for each in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


def is_named(
    run: Run, text: str, limit_s: float, *, is_certain: bool, is_first: bool = False
) -> bool:
    """True if a text names the rank and its line, soon enough. A stopped process shows its line as
    it is ended.
    """
    words, line = HANGS[run.how.partition("@")[0]]
    found = re.search(rf"(?<!while )[Rr]ank 1 {words} at [^;]*?hanging.py:(\d+) in ", text)
    stood = seconds_of(text)
    soon = is_certain or (stood is not None and stood <= 2 * limit_s)
    if is_first and run.how == "stopped":
        return soon and f"Rank 1 {words}" in text
    return soon and found is not None and int(found[1]) - line_of(line) in (0, 1)


def seconds_of(text: str) -> int | None:
    stood = re.search(r"no progress for (\d+) s", text)
    return int(stood[1]) if stood else None


def is_right(kind: str, run: Run, outcome: Outcome, arguments: argparse.Namespace) -> bool:
    """True if the verdicts name the right rank and line, or a slow run was not ended."""
    if kind == "healthy":
        return outcome.code == 0 and not outcome.error and "done" in outcome.text
    how = run.how.partition("@")[0]
    reported = how in AT_ONCE or is_named(
        run, outcome.reported, arguments.limit, is_certain=False, is_first=True
    )
    if how in AT_WORK and not arguments.to_the_end:
        return reported
    end_s = arguments.end * (10 if how in AT_WORK else 1)
    return (
        reported
        and outcome.code != 0
        and is_named(run, outcome.error, end_s, is_certain=how in AT_ONCE)
    )


@contextlib.contextmanager
def load(number: int):
    """So many processes that are always busy."""
    source = "import time\nends = time.monotonic() + 3600\nwhile time.monotonic() < ends: pass"
    busy = [subprocess.Popen([sys.executable, "-S", "-c", source]) for _ in range(number)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--limit", type=float, default=4.0)
    parser.add_argument("--end", type=float, default=8.0, help="end_after, in seconds")
    parser.add_argument("--load", type=int, default=0, help="busy processes beside the runs")
    parser.add_argument("--only", default="", help="runs whose words match this expression")
    parser.add_argument("--kind", choices=("all", "hangs", "healthy"), default="all")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side")
    parser.add_argument(
        "--to-the-end", action="store_true", help="don't stop runs whose rank computes"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *event: sys.exit(1))  # so that nothing is left
    chosen = [
        (kind, run)
        for kind, runs in (("hangs", hangs()), ("healthy", healthy()))
        for run in runs
        if arguments.kind in ("all", kind)
        and re.search(arguments.only, f"{run.how} {run.strategy} {run.launcher}")
    ]
    table = Table("run", "strategy", "launcher", "code", "reported", "ended", "over", "right")
    numbers = {"hangs": [0, 0], "healthy": [0, 0]}
    with load(arguments.load), ThreadPoolExecutor(arguments.at_once) as pool:
        outcomes = pool.map(lambda each: outcome_of(each[1], arguments), chosen)
        for (kind, run), outcome in zip(chosen, outcomes, strict=True):
            right = is_right(kind, run, outcome, arguments)
            numbers[kind][0] += right
            numbers[kind][1] += 1
            seconds = map(seconds_of, (outcome.reported, outcome.error))
            stood = [f"{text} s" if text is not None else "" for text in seconds]
            over = f"{outcome.over_s:.1f} s" if outcome.error else ""
            cells = (
                run.how,
                run.strategy,
                run.launcher,
                str(outcome.code),
                *stood,
                over,
                "yes" if right else "NO",
            )
            table.add_row(*cells)
            print(*cells, flush=True)
            if not right:
                print(outcome.text[-4000:], flush=True)
    Console(width=110).print(table)
    for kind, (right, number) in numbers.items():
        print(
            f"{kind}: {right} of {number} right; load averages "
            f"{', '.join(f'{each:.0f}' for each in os.getloadavg())}"
        )


if __name__ == "__main__":
    main()
