"""Seconds from the death of a rank to the end of the next step: `core go-on`, with a spare, and
torchrun's restart.

python benchmarks/lost_ranks.py

The ways take turns. Each trains a small network under ddp with two ranks and keeps the state in
memory after each step; one rank is killed in the middle of a step, once the ranks have trained for
a while.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

PROGRAM = Path(__file__).parents[1] / "plugins/resilience/tests/lost_ranks_program.py"
WAYS = {
    "torchrun, by `core run --max-restarts 1`": ["run", "--devices", "2", "--max-restarts", "1"],
    "`core go-on`": ["go-on", "--devices", "2"],
    "`core go-on --spares 1`": ["go-on", "--devices", "2", "--spares", "1"],
    "`core go-on --min-devices 1`": ["go-on", "--devices", "2", "--min-devices", "1"],
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way, words in WAYS.items():
            seconds[way].append(measure(words, rank=number % 2))
    print(f"torch {torch.__version__}, {options.rounds} rounds, load {os.getloadavg()[0]:.1f}\n")
    print("| way | s to the next step: median | least | most |\n| --- | --- | --- | --- |")
    for way, each in seconds.items():
        print(f"| {way} | {statistics.median(each):.2f} | {min(each):.2f} | {max(each):.2f} |")


def measure(words: list[str], rank: int) -> float:
    plan = [{"phase": "backward", "step": 400, "rank": rank}]
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PLAN": json.dumps(plan),
            "CORE_MEMORY_FOLDER": folder,
        }
        command = [sys.executable, "-m", "core", *words, PROGRAM, "ddp", "420"]
        subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True)
        events = [
            json.loads(line) for line in Path(folder, "events.jsonl").read_text().splitlines()
        ]
    (killed,) = (event["time"] for event in events if event["kind"] == "kill")
    return (
        next(event["time"] for event in events if event["kind"] == "step" and event["round"] == 1)
        - killed
    )


if __name__ == "__main__":
    main()
