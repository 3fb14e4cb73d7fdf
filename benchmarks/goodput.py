"""Goodput under seeded faults: core by default, core with the page "Runs that go on", and Lightning
under torchrun.

    python -m venv other && other/bin/pip install lightning torchdata
    python benchmarks/goodput.py --lightning other/bin/python [--rates none low high] [--tools NAME ...] [--runs 2]

Two ranks train a small network in float64 for one epoch. A step sleeps 50 ms, as a program does
that waits for its GPU. A plan, drawn from the run's number, says in which step and on which rank
which fault comes; it is the same for all. A rank kills itself; it sleeps forever; one sample of its
batch isn't a number; or an allocation fails for each batch of more than half the size. Kills and
hangs come once. A bad sample is in the data, and memory stays short.

Useful are steps whose update is in the final weights, or in the last checkpoint where the run gives
up, and before the weights aren't numbers. Goodput is their number x 50 ms over the seconds from the
command to its end. Weights are right if they are those of the same program undisturbed, within
1e-12; with a bad batch in the plan, undisturbed on data without that step's samples.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from goodput_programs.faulty import GLOBAL_BATCH_SIZE, NUM_RANKS, Fault, Plan

PROGRAMS = Path(__file__).parent / "goodput_programs"
RATES = {
    "none": [],
    "low": ["kill", "hang"],
    "high": ["kill", "kill", "hang", "hang", "bad batch", "out of memory"],
    "kill": ["kill"],
    "hang": ["hang"],
    "bad batch": ["bad batch"],
    "out of memory": ["out of memory"],
}
"""The faults of a run; the last four to see one kind alone."""
STEP_S, HANG_S, LIMIT_S = 0.05, 10.0, 400.0
VARIABLES = {
    "OMP_NUM_THREADS": "1",
    # else gloo of torch 2.13 finds addresses of lost ranks after a restart
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5",
}
"""Of each tool."""
CLOSE = 1e-12


@dataclass(frozen=True)
class Tool:
    """A way to train: the command, before the program's, and whether it uses the page."""

    command: tuple[str, ...]
    program: str
    is_on_page: bool = False

    def words(self, num_faults: int, plan: Path) -> list[str]:
        return [
            *(each.format(num_faults) for each in self.command),
            str(PROGRAMS / self.program),
            str(plan),
        ]


def tools_of(lightning: str) -> dict[str, Tool]:
    core = (sys.executable, "-m", "core")
    torchrun = (
        lightning,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(NUM_RANKS),
    )
    restarts = ("--max-restarts", "{}")
    go_on = ("go-on", "--devices", str(NUM_RANKS), "--spares", "1", "--max-losses", "{}")
    return {
        "core": Tool((*core, "run", "--devices", str(NUM_RANKS), *restarts), "on_core.py"),
        "core, go-on": Tool((*core, *go_on), "on_core.py", is_on_page=True),
        "Lightning": Tool((*torchrun, *restarts), "on_lightning.py"),
    }


@dataclass
class Outcome:
    """The outcome of a run.

    Attributes:
        ended: how: "yes", or the error with which it gave up.
        seconds: from the command to its end.
        step: updates in the final weights, or in the last checkpoint.
        weights: that it ended with; none where it gave up.
        num_useful: updates that count.
        samples: whether each is once in the updates.
        num_begun: how often training began.
        num_again: updates that were made again.
    """

    ended: str
    seconds: float
    step: int
    weights: list[float]
    num_useful: int
    samples: str
    num_begun: int
    num_again: int

    @property
    def goodput(self) -> float:
        return self.num_useful * STEP_S / self.seconds


def faults_of(rate: str, number: int, num_steps: int) -> tuple[Fault, ...]:
    """The faults of a run, by its number."""
    draw = random.Random(f"{rate} {number}")
    kinds = RATES[rate]
    steps = draw.sample(range(num_steps // 10, num_steps - num_steps // 10), len(kinds))
    return tuple(
        Fault(kind, step, draw.randrange(NUM_RANKS))
        for kind, step in zip(kinds, steps, strict=True)
    )


def run(tool: Tool, plan: Plan, logs: Path | None) -> Outcome:
    """One run, from its command to its end. What it prints is kept in `logs`, if that is a
    folder.
    """
    with tempfile.TemporaryDirectory() as name:
        plan = replace(plan, folder=Path(name), is_on_page=tool.is_on_page)
        content = asdict(plan)
        del content["folder"]
        (plan.folder / "plan.json").write_text(json.dumps(content), encoding="utf-8")
        words, log = (
            tool.words(max(1, len(plan.faults)), plan.folder / "plan.json"),
            plan.folder / "log",
        )
        with open(log, "wb") as file:
            began_s = time.monotonic()
            process = subprocess.Popen(
                words, cwd=name, env=os.environ | VARIABLES, stdout=file, stderr=subprocess.STDOUT
            )
            try:
                code = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                end(process)
                code = None
            except BaseException:
                end(process)
                raise
            seconds = time.monotonic() - began_s
        text = log.read_text(encoding="utf-8", errors="replace")
        if logs is not None:
            (logs / f"{time.time():.0f}.log").write_text(
                f"{words}\n{plan}\n{text}", encoding="utf-8"
            )
        return outcome_of(plan, code, text, seconds)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a program and all that it has started."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    for each in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


def outcome_of(plan: Plan, code: int | None, text: str, seconds: float) -> Outcome:
    """The outcome of a run, from the files that it has left."""
    result = plan.folder / "result.json"
    if code == 0 and result.exists():
        content = json.loads(result.read_text(encoding="utf-8"))
        ended, step, weights = "yes", content["step"], content["weights"]
    else:
        saved = [
            int(found[1])
            for each in plan.folder.glob("saved/*")
            if (found := re.search(r"step=(\d+)", each.name))
        ]
        ended, step, weights = error_of(code, text), max(saved, default=0), []
    counts: Counter[int] = Counter()
    bad_steps, num_begun, num_again = [step + 1], 0, 0
    for rank in range(NUM_RANKS):
        updates, begun, again = updates_of(plan.folder / f"record-{rank}.jsonl")
        num_begun, num_again = max(num_begun, begun), max(num_again, again)
        for number, update in updates.items():
            if number <= step:
                counts.update(update["samples"])
                bad_steps += [] if update["is_finite"] else [number]
    return Outcome(
        ended,
        seconds,
        step,
        weights,
        min(bad_steps) - 1,
        samples_of(plan, counts, step),
        num_begun,
        num_again,
    )


def updates_of(record: Path) -> tuple[dict[int, dict[str, Any]], int, int]:
    """The updates of a rank by number, each as it was made last; how often training began; updates
    made again.
    """
    if not record.exists():
        return {}, 0, 0
    lines = [json.loads(each) for each in record.read_text(encoding="utf-8").splitlines()]
    made = [each for each in lines if "step" in each]
    updates = {each["step"]: each for each in made}
    return updates, len(lines) - len(made), len(made) - len(updates)


def samples_of(plan: Plan, counts: Counter[int], step: int) -> str:
    """Whether each sample is once in the updates, up to this step of a run that gave up."""
    several = sum(count > 1 for count in counts.values())
    wanted = set(range(plan.num_steps * GLOBAL_BATCH_SIZE))
    if plan.left_out is not None:
        wanted -= samples_of_step(plan.left_out)
    missing = wanted - set(counts)
    bad = next(
        (samples_of_step(each.step) for each in plan.faults if each.kind == "bad batch"), set()
    )
    if step < plan.num_steps - bool(bad):  # it gave up: what is missing is what comes later
        missing = {each for each in missing if each < max(counts, default=0)}
    if several or missing - bad:
        return f"{several} more often, {len(missing)} never"
    return "once, but for the bad batch" if missing else "once"


def samples_of_step(step: int) -> set[int]:
    return set(range(step * GLOBAL_BATCH_SIZE, (step + 1) * GLOBAL_BATCH_SIZE))


def error_of(code: int | None, text: str) -> str:
    """The last error that a run has printed, but for those of ranks that have lost another."""
    if code is None:
        return "it doesn't end"
    found = re.findall(
        r"^(?:\[rank\d\]: )?(?:[\w.]+\.)?(\w+(?:Error|Failure): .*)", text, re.MULTILINE
    )
    found = [
        each
        for each in found
        if not re.search(r"ChildFailed|Connection (?:closed|reset|refused)|Read error", each)
    ]
    error = found[-1] if found else f"code {code}"
    return "gave up: " + (
        "can't allocate memory" if "can't allocate memory" in error else error[:60]
    )


def weights_verdict(outcome: Outcome, reference: Outcome) -> str:
    """Whether the weights are right."""
    if not outcome.weights:
        return "none"
    if any(each != each for each in outcome.weights):
        return "NaN"
    away = max(
        abs(one - other) for one, other in zip(outcome.weights, reference.weights, strict=True)
    )
    return f"right ({away:.0e})" if away <= CLOSE else f"wrong by {away:.1e}"


class References:
    """Undisturbed runs, made once where they are asked for."""

    def __init__(self, logs: Path | None) -> None:
        self._logs = logs
        self._made: dict[tuple[Tool, int | None], Outcome] = {}

    def of(self, tool: Tool, plan: Plan) -> Outcome:
        left_out = next((each.step for each in plan.faults if each.kind == "bad batch"), None)
        key = tool, left_out
        if key not in self._made:
            made = run(tool, replace(plan, faults=(), left_out=left_out, step_s=0.0), self._logs)
            assert made.weights, made.ended
            self._made[key] = made
        return self._made[key]


def joined(values: list[str]) -> str:
    return values[0] if len(set(values)) == 1 else "; ".join(values)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--lightning", default=sys.executable, help="the Python that has Lightning and torchdata"
    )
    parser.add_argument("--tools", nargs="*", help="all by default")
    parser.add_argument("--rates", nargs="*", default=["none", "low", "high"], choices=list(RATES))
    parser.add_argument(
        "--runs", type=int, default=2, help="of each tool and rate; each has another plan"
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--logs", type=Path, help="a folder for what the runs print")
    parser.add_argument("--save-every", type=int, default=25)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *event: sys.exit(1))  # so that nothing is left
    tools = tools_of(arguments.lightning)
    tools = {name: tool for name, tool in tools.items() if name in (arguments.tools or tools)}
    references = References(arguments.logs)
    rows: dict[tuple[str, str], list[list[str]]] = {}
    for number in range(arguments.runs):
        for rate in arguments.rates:
            faults = faults_of(rate, number, arguments.steps)
            plan = Plan(
                arguments.steps, STEP_S, arguments.save_every, HANG_S, faults, None, False, Path()
            )
            print(
                f"{rate}, run {number}:",
                ", ".join(f"{each.kind} {each.step}/{each.rank}" for each in faults),
            )
            for name, tool in tools.items():
                reference = references.of(tool, plan)
                outcome = run(tool, plan, arguments.logs)
                load = f"load {os.getloadavg()[0]:.1f}"
                cells = [
                    outcome.ended,
                    str(outcome.step),
                    weights_verdict(outcome, reference),
                    outcome.samples,
                ]
                cells += [
                    str(outcome.num_begun),
                    str(outcome.num_again),
                    f"{outcome.seconds:.1f}",
                    f"{outcome.goodput:.2f}",
                ]
                rows.setdefault((rate, name), []).append(cells)
                print(" ", name, *cells, load, sep=" | ", flush=True)
    print(
        "| faults | tool | ended | step | weights | samples | begun | steps again | seconds | "
        "goodput |"
    )
    print("| --- " * 10 + "|")
    for (rate, name), runs in sorted(
        rows.items(), key=lambda each: arguments.rates.index(each[0][0])
    ):
        print(
            "|",
            " | ".join([rate, name, *(joined(list(each)) for each in zip(*runs, strict=True))]),
            "|",
        )


if __name__ == "__main__":
    main()
