"""Kill ranks of `core go-on` in each phase, and compare the weights with those of an undisturbed
run.

python benchmarks/killed_ranks.py --kills 400 --forked
python benchmarks/killed_ranks.py --kills 100 --forked --load 20
python benchmarks/killed_ranks.py --kills 72

A run meets several kills, one after the other; `meet` kills a rank while the others still meet
after the one before. A parameter counts how often each sample was trained.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch

from core_testing import programs

PHASES = ("set up", "data", "forward", "backward", "optimizer", "save", "validate", "meet", "end")
WORLDS = [
    ("ddp", 2),
    ("ddp", 3),
    ("ddp", 4),
    ("fsdp", 2),
    ("fsdp", 3),
    ("fsdp", 4),
    ("parallel", 2),
    ("parallel", 4),
]
STEPS = 40
TOLERANCE = 1e-12
PROGRAM = Path(__file__).parents[1] / "plugins/resilience/tests/lost_ranks_program.py"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=27)
    parser.add_argument("--load", type=int, default=0, help="busy processes beside the run")
    parser.add_argument("--spares", type=int, default=0)
    parser.add_argument(
        "--forked",
        action="store_true",
        help="processes have imported torch already: less time each",
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.load)
    ]
    try:
        results = drill(options, random.Random(options.seed))
    finally:
        for each in busy:
            each.kill()
    print(
        f"torch {torch.__version__}, {options.load} busy processes, load {os.getloadavg()[1]:.1f}, "
        f"seed {options.seed}"
    )
    print(table(results))


def drill(options: argparse.Namespace, rng: random.Random) -> list[dict]:
    results: list[dict] = []
    expected = {}
    while len(results) < options.kills:
        for strategy, size in WORLDS:
            if (strategy, size) not in expected:
                expected[strategy, size], _, text = run(strategy, size, [], options)
                assert expected[strategy, size] is not None, text
            plan = make_plan(rng, size)
            weights, events, text = run(strategy, size, plan, options)
            results += judge(strategy, size, plan, weights, events, expected[strategy, size], text)
            if len(results) >= options.kills:
                break
            print(
                f"{len(results)} kills, {sum(not each['right'] for each in results)} wrong",
                flush=True,
            )
    return results


def make_plan(rng: random.Random, size: int) -> list[dict]:
    """Each phase once, in an order in which a rank can be lost."""
    inner = [phase for phase in PHASES if phase not in ("meet", "end")]
    rng.shuffle(inner)
    inner.insert(rng.randrange(1, len(inner) + 1), "meet")
    steps = sorted(rng.sample(range(1, STEPS), len(inner)))
    phases = [*inner, "end"]
    ranks = [rng.choice([0, size // 2, size - 1]) for _ in phases]
    return [
        {"phase": p, "step": s, "rank": r}
        for p, s, r in zip(phases, [*steps, STEPS], ranks, strict=True)
    ]


def run(
    strategy: str, size: int, plan: list[dict], options: argparse.Namespace
) -> tuple[torch.Tensor | None, list[dict], str]:
    """Weights, if the run has ended well; what the program has noted; and the output."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*programs.CORE, "go-on", "--devices", str(size), "--spares", str(options.spares)]
        command += ["--max-losses", "100", str(PROGRAM), strategy, str(STEPS)]
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PLAN": json.dumps(plan),
            "CORE_MEMORY_FOLDER": folder,
        }
        if options.forked:
            program = programs.start(command, cwd=folder, env=env, merge_errors=True)
        else:
            program = subprocess.Popen(
                command, cwd=folder, env=env, stdout=-1, stderr=-2, text=True
            )
        timeout_s = 240 * (1 + options.load / 4)
        try:
            text = program.communicate(timeout=timeout_s)[0]
        except subprocess.TimeoutExpired:
            program.kill()  # and the kernel its ranks
            text = f"no end after {timeout_s} s\n{program.communicate()[0]}"
        path, log = Path(folder, "weights.pt"), Path(folder, "events.jsonl")
        events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return torch.load(path) if path.exists() and not program.returncode else None, events, text


def judge(strategy, size, plan, weights, events, expected, text) -> list[dict]:
    """A row for each kill of a run: how the run ended, and how long it took to the next step.

    A kill that is planned for a phase which doesn't come any more, as the last validation has been,
    is none.
    """
    done = {event["round"]: event for event in events if event["kind"] == "kill"}
    first_steps = {}
    for event in events:
        if event["kind"] == "step":
            first_steps.setdefault(event["round"], event["time"])
    is_right = weights is not None and (weights - expected).abs().max().item() <= TOLERANCE
    if not is_right:
        difference = None if weights is None else (weights - expected).abs().max().item()
        print(
            f"{strategy} {size}: {len(done)} of {len(plan)} kills, difference "
            f"{difference}\n{plan}\n{text}",
            flush=True,
        )
    rows = []
    for number, killed in done.items():
        after = next((first_steps[n] for n in sorted(first_steps) if n > number), None)
        followed = number + 1 < len(plan) and plan[number + 1]["phase"] in ("meet", "set up")
        is_timed = after is not None and plan[number]["phase"] != "end" and not followed
        rows.append(
            {
                "phase": plan[number]["phase"],
                "strategy": strategy,
                "right": is_right,
                "silent": weights is not None and not is_right,
                "seconds": after - killed["time"] if is_timed else None,
            }
        )
    return rows


def table(results: list[dict]) -> str:
    lines = [
        "| killed in | ddp | fsdp | parallel | s to the next step: median, largest |",
        "| --- " * 5 + "|",
    ]
    cells = defaultdict(list)
    for row in results:
        cells[row["phase"], row["strategy"]].append(row)
    for phase in PHASES:
        rows = [row for row in results if row["phase"] == phase]
        counts = [
            f"{sum(r['right'] for r in cells[phase, s])} of {len(cells[phase, s])}"
            for s in ("ddp", "fsdp", "parallel")
        ]
        times = [row["seconds"] for row in rows if row["seconds"] is not None]
        took = f"{statistics.median(times):.2f}, {max(times):.2f}" if times else ""
        lines.append(f"| {phase} | {' | '.join(counts)} | {took} |")
    right, silent = sum(row["right"] for row in results), sum(row["silent"] for row in results)
    return "\n".join([*lines, f"{right} of {len(results)} right, {silent} silently wrong"])


if __name__ == "__main__":
    began_s = time.monotonic()
    main()
    print(f"{time.monotonic() - began_s:.0f} s")
