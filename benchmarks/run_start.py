"""The way to the first step of two ranks on one node: started by hand, by `core run`, and by
torchrun.

    python benchmarks/run_start.py
    python benchmarks/run_start.py --most-load 0.2
    python benchmarks/run_start.py --ahead

The three start one program, a Fabric on two CPU ranks, in turns. By hand means two processes at
once, with the variables that `torch.distributed` reads. "To step 1" is clock time from the start of
the first process to the end of rank 0's first optimizer step. CPU is that of all processes to their
end, as the operating system counts it. A ratio is the median of the rounds' own. Everything is
imported from compiled files, as an installed package is.

On a machine that others use, `--most-load` waits for a pause of theirs before each start. `--ahead`
gives all processes real-time priority, and each rank a core of its own, as it would have if nobody
else were there. It needs root.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from startup import compile_core

from core.cluster.ports import reserve_port

PROGRAM = """
import os, sys, time
if sys.argv[2:] == ["ahead"]:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(os.environ["RANK"])]})
import torch
from core import Fabric

fabric = Fabric(accelerator="cpu")
fabric.launch()
model = torch.nn.Linear(32, 2)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
fabric.backward(model(torch.ones(8, 32)).sum())
optimizer.step()
if fabric.global_rank == 0:
    with open(sys.argv[1], "w") as file:
        file.write(repr(time.time()))
fabric.teardown()
"""
CORE_RUN = [sys.executable, "-m", "core", "run", "--devices", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def by_hand(arguments: list[str]) -> list[subprocess.Popen[bytes]]:
    meeting = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(reserve_port(by_hand)),
        "WORLD_SIZE": "2",
    }
    return [
        start([sys.executable, *arguments], {"RANK": rank, "LOCAL_RANK": rank, **meeting})
        for rank in "01"
    ]


def start(command: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen(command, env=own | variables, stdout=subprocess.DEVNULL)


STARTS: dict[str, Callable[[list[str]], list[subprocess.Popen[bytes]]]] = {
    "by hand": by_hand,
    "core run": lambda arguments: [start([*CORE_RUN, *arguments], {})],
    "torchrun": lambda arguments: [start([*TORCHRUN, *arguments], {})],
}


def run(name: str, folder: Path, words: list[str]) -> tuple[float, float]:
    """Seconds to the first step, and of CPU in all."""
    (program := folder / "program.py").write_text(PROGRAM)
    (stepped := folder / "stepped").unlink(missing_ok=True)
    began, cpu_s = time.time(), 0.0
    for process in STARTS[name]([str(program), str(stepped), *words]):
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{name} ended with status {status}")
        cpu_s += usage.ru_utime + usage.ru_stime
    return float(stepped.read_text()) - began, cpu_s


def other_load(before: tuple[float, float], own_cpu_s: float) -> float:
    """The cores that other programs have kept busy since."""
    busy_s, clock_s = (now - then for now, then in zip(busy_and_clock_s(), before, strict=True))
    return max(0.0, busy_s - own_cpu_s) / clock_s


def await_quiet(most_load: float) -> None:
    load = most_load + 1
    while load > most_load:
        before = busy_and_clock_s()
        time.sleep(0.5)
        load = other_load(before, 0.0)


def busy_and_clock_s() -> tuple[float, float]:
    user, nice, system, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK"), time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--most-load",
        type=float,
        default=99.0,
        help="cores that others keep busy when a run begins",
    )
    parser.add_argument(
        "--ahead", action="store_true", help="real-time priority, and a core for each rank"
    )
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    compile_core()
    if arguments.ahead:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    words = ["ahead"] if arguments.ahead else []
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in STARTS}
    with tempfile.TemporaryDirectory() as folder:
        for name in STARTS:
            run(name, Path(folder), words)  # files into the memory of the system
        for _ in range(arguments.rounds):
            for name, rows in found.items():
                await_quiet(arguments.most_load)
                before = busy_and_clock_s()
                step_s, cpu_s = run(name, Path(folder), words)
                rows.append((step_s, cpu_s, other_load(before, cpu_s)))
    columns = ("", "to step 1, s", "least", "most", "ratio", "CPU, s", "ratio", "other load")
    print("{:10}{:>14}{:>8}{:>8}{:>8}{:>9}{:>8}{:>12}".format(*columns))
    for name, rows in found.items():
        steps_s, cpus_s, loads = zip(*rows, strict=True)
        step_ratio, cpu_ratio = (
            statistics.median(
                one[column] / other[column]
                for one, other in zip(rows, found["by hand"], strict=True)
            )
            for column in (0, 1)
        )
        step_s, cpu_s, load = map(statistics.median, (steps_s, cpus_s, loads))
        clock = f"{step_s:14.3f}{min(steps_s):8.3f}{max(steps_s):8.3f}{step_ratio:8.2f}"
        print(f"{name:10}{clock}{cpu_s:9.3f}{cpu_ratio:8.2f}{load:12.2f}")
    print("Other load: cores of this machine that other programs kept busy meanwhile, medians.")


if __name__ == "__main__":
    main()
