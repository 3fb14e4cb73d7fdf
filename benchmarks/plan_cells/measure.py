"""By hand: runs the cells of cells.json, and writes the memory and messages of each rank to
measured.json.

    python benchmarks/plan_cells/measure.py [part of a cell's name ...] [--small-buckets] [--again] [-v]
    python benchmarks/plan_cells/measure.py --agreement

A run is three optimizer steps of a Trainer on CPUs, in one process a rank. Cells that are in
measured.json are left out; `--again` runs those that failed; `--small-buckets` runs those of
DeepSpeed with small buckets, into measured_small_buckets.json. `--agreement` runs 20 cells of one
and two ranks, with memory that goes back to the system when it is freed, and compares what was
counted with the process's own peak; it writes agreement.json. Nothing here imports a planner.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import random
import re
import sys
import time
import traceback
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # its threads would keep ranks from being forked
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import tqdm
from allocations import Allocations
from design import SEED, VARIANTS, Cell, read
from models import MODELS

with suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import core_deepspeed.conformance  # noqa: F401  # imports DeepSpeed once, and not in each of the ranks

from core import Callback
from core.strategies import DeepSpeedStrategy
from core_parallel import MeshParallelStrategy
from core_testing.ranks import Backend

if TYPE_CHECKING:
    from core import Strategy

STEPS, NUM_AGREEMENTS, LIMIT_S = 3, 20, 150
RECORD, OF_SMALL, AGREEMENT = (
    Path(__file__).with_name(f"{name}.json")
    for name in ("measured", "measured_small_buckets", "agreement")
)
RETURNING = {
    **{f"MALLOC_{name}_THRESHOLD_": "65536" for name in ("MMAP", "TRIM")},
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_PERTURB_": "255",
}
"""Lets glibc give memory back when it is freed, and write what it allocates: before, it takes no
memory of the process, as buckets of DeepSpeed that are never full."""


class Windows(Callback):
    """The peak of the set-up, of each step and of the end; and what the last step sends."""

    def __init__(self, allocations: Allocations, accumulated: int) -> None:
        self.allocations, self._accumulated = allocations, accumulated
        self.peaks: list[int] = []
        self.sent: dict[str, list[int]] = {}
        self.setup_bytes = self.after_bytes = 0
        self.process_peaks: list[int] = []

    def on_train_start(self, trainer: Any, module: Any) -> None:
        gc.collect()
        self.setup_bytes = self.allocations.live_bytes
        self._close()

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % self._accumulated == 0:
            self._close()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self.after_bytes = self.allocations.live_bytes

    def _close(self) -> None:
        peak, self.sent = self.allocations.restart()
        self.peaks.append(peak)
        self.process_peaks.append(_status()["VmHWM"])
        _restart_process_peak()


def _status() -> dict[str, int]:
    """The process's own memory in bytes, as the kernel counts it."""
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return {
        name: int(size) * 1024
        for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)
    }


def _restart_process_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def _strategy(text: str) -> Strategy | str:
    alias, _, axes = text.partition(":")
    if not axes:
        return alias
    options: dict[str, Any] = {
        name: int(size) for name, size in (each.split("=") for each in axes.split(","))
    }
    if alias == "parallel":
        return MeshParallelStrategy(**options)
    return DeepSpeedStrategy(stage=int(alias[-1]), **options)


def _fit(rank: Any, cell: Cell, steps: int) -> Windows:
    """All ranks. One run, from when its module is made."""
    torch.manual_seed(0)
    module = MODELS[cell.model]()
    allocations = Allocations()
    allocations.count([*module.parameters(), *module.buffers()])
    windows = Windows(allocations, int(VARIANTS[cell.variant].get("accumulate_grad_batches", 1)))  # type: ignore[call-overload]
    trainer = rank.trainer(
        max_steps=steps, callbacks=[windows], watch=False, **VARIANTS[cell.variant]
    )
    with allocations:
        trainer.fit(module)
    return windows


def _measure(rank: Any, cell: Cell) -> dict[str, Any]:
    """All ranks. Bytes and messages of a cell."""
    torch.set_num_threads(1)
    windows = _fit(rank, cell, STEPS)
    setup, *steps, _ = [*windows.peaks, 0]
    return {
        "peak_bytes": max(windows.peaks),
        "setup_peak_bytes": setup,
        "setup_bytes": windows.setup_bytes,
        "step_peak_bytes": steps,
        "end_peak_bytes": windows.allocations.peak_bytes,
        "after_bytes": windows.after_bytes,
        "sent": {
            name: {"calls": calls, "bytes": size}
            for name, (calls, size) in sorted(windows.sent.items())
        },
    }


def _compare(rank: Any, cell: Cell) -> dict[str, Any]:
    """All ranks. Bytes of a cell beside those of the process, which has trained it once before."""
    torch.set_num_threads(1)
    libc = ctypes.CDLL("libc.so.6")
    _fit(rank, cell, 2)
    gc.collect()
    libc.malloc_trim(0)
    before = _status()
    _restart_process_peak()
    windows = _fit(rank, cell, STEPS)
    of_files = _status()["RssFile"] - before["RssFile"]
    counted, process = max(windows.peaks), max(windows.process_peaks) - before["VmRSS"] - of_files
    return {"counted_bytes": counted, "process_bytes": process, "of_files_bytes": of_files}


def _run(cell: Cell, function: Any, *, is_loud: bool) -> dict[str, Any]:
    started_s = time.monotonic()
    backend = Backend(
        partial(_strategy, cell.strategy), num_processes=cell.world, timeout_s=LIMIT_S
    )
    try:
        found: dict[str, Any] = {"ranks": backend.run(function, cell)}
    except Exception as error:
        if is_loud:
            traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        said = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception): .*)", text, re.MULTILINE)
        found = {"error": re.sub(r"0x[0-9a-f]+|/\S*/", "", said[-1] if said else text)[:600]}
    return {**found, "seconds": round(time.monotonic() - started_s, 1)}


def _agreements(cells: list[Cell]) -> list[Cell]:
    small = [cell.with_small_buckets() for cell in cells if cell.world <= 2]
    return random.Random(SEED).sample(small, NUM_AGREEMENTS)


def _write(path: Path, results: dict[str, Any]) -> None:
    lines = (f"{json.dumps(name)}: {json.dumps(results[name])}" for name in sorted(results))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--agreement", action="store_true")
    parser.add_argument("--small-buckets", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("-v", action="store_true")
    asked = parser.parse_args()
    if asked.agreement and not RETURNING.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **RETURNING})
    path, function = (AGREEMENT, _compare) if asked.agreement else (RECORD, _measure)
    if asked.small_buckets:
        path = OF_SMALL
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    tqdm.tqdm.monitor_interval = 0  # its thread would keep ranks from being forked
    cells = _agreements(read()) if asked.agreement else read()
    if asked.small_buckets:
        cells = [cell.with_small_buckets() for cell in cells if cell.has_buckets]
    for number, cell in enumerate(cells, 1):
        has_failed = "error" in results.get(cell.name, {})
        is_there = cell.name in results and not (asked.again and has_failed)
        if is_there or not all(part in cell.name for part in asked.parts):
            continue
        found = results[cell.name] = _run(cell, function, is_loud=asked.v)
        _write(path, results)
        texts = [_text(rank) for rank in found.get("ranks", ())] or [found["error"][:300]]
        print(
            f"{number:3} {cell.name:60} {found['seconds']:5.1f} s  {', '.join(texts)}", flush=True
        )
    return int(any("error" in found for found in results.values()))


def _text(rank: dict[str, Any]) -> str:
    if "process_bytes" in rank:
        counted, process = rank["counted_bytes"], rank["process_bytes"]
        return (
            f"{counted / 2**20:.1f} counted, {process / 2**20:.1f} MiB of the process "
            f"({counted / process - 1:+.1%})"
        )
    return f"{rank['peak_bytes'] / 2**20:.1f} MiB"


if __name__ == "__main__":
    sys.exit(main())
