"""Saving and loading 1,152 MiB of model and Adam state, interleaved with what torch offers.

    python benchmarks/checkpoint.py [--mib 1152] [--rounds 5] [--folder FOLDER]

Times are medians. CPU counts all threads of the process. "extra" is how far the resident memory rose above what it was
before the call; mapped pages of the file count, where a call maps it.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from core.checkpoint import AsyncCheckpointIO, DistributedCheckpointIO, TorchCheckpointIO

MIB = 1 << 20
LAYERS = 24


class Alone:
    """One process."""

    rank, size = 0, 1
    writer = {}  # noqa: RUF012  # as short as can be

    def broadcast_object(self, obj, src=0):
        return obj

    def gather_objects(self, obj, dst=0):
        return [obj]

    def barrier(self):
        pass

    def in_background(self):
        return self


def make_state(mib):
    """A model of equal layers, with two moments for each weight."""
    width = round((mib * MIB / 3 / 4 / LAYERS) ** 0.5)
    names = [f"layers.{number}.weight" for number in range(LAYERS)]
    weights = {name: torch.randn(width, width) for name in names}
    moments = {name: {"exp_avg": torch.randn(width, width), "exp_avg_sq": torch.rand(width, width)} for name in names}
    return {"model": weights, "optimizer": {"state": moments}}


def resident(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field))


class Measured:
    """Wall and CPU seconds of a call, and how many MiB the resident memory rose."""

    def __enter__(self):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        self.before = resident("VmRSS:")
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_):
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        self.extra = resident("VmHWM:") - self.before


def flushed_torch_save(state, path):
    with open(path, "wb") as file:
        torch.save(state, file)
        os.fsync(file.fileno())


def touch(value):
    """Read every element, as whoever uses a mapped state does."""
    if isinstance(value, dict):
        return sum(touch(item) for item in value.values())
    return value.view(torch.int32).sum().item()


def save_cases(state, folder):
    distributed, single = DistributedCheckpointIO(), TorchCheckpointIO()
    return {
        "torch.save": lambda: torch.save(state, folder / "torch.pt"),
        "torch.save + fsync": lambda: flushed_torch_save(state, folder / "fsync.pt"),
        "dcp.save": lambda: dcp.save(state, checkpoint_id=str(folder / "dcp"), no_dist=True),
        "DistributedCheckpointIO": lambda: distributed.save_checkpoint(state, folder / "ours", collectives=Alone()),
        "TorchCheckpointIO": lambda: single.save_checkpoint(state, folder / "single.ckpt", collectives=Alone()),
    }


def load_cases(state, folder):
    distributed = DistributedCheckpointIO()
    path = folder / "torch.pt"

    def in_place(state):
        distributed.load_checkpoint(folder / "ours", collectives=Alone(), state=state)

    return {
        "torch.load(mmap=True)": lambda: torch.load(path, mmap=True, weights_only=True),
        "  and every element read": lambda: touch(torch.load(path, mmap=True, weights_only=True)),
        "DistributedCheckpointIO, verified": lambda: distributed.load_checkpoint(folder / "ours", collectives=Alone()),
        "  and every element read ": lambda: touch(distributed.load_checkpoint(folder / "ours", collectives=Alone())),
        "DistributedCheckpointIO, verified, in place": lambda: in_place(state),
        "dcp.load, in place, not verified": lambda: dcp.load(state, checkpoint_id=str(folder / "dcp"), no_dist=True),
    }


def run(cases, rounds):
    measured = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            with Measured() as figures:
                result = case()
            del result
            measured[name].append(figures)
    print(f"{'':46}{'wall s':>9}{'CPU s':>9}{'extra MiB':>11}")
    for name, rows in measured.items():
        median = {field: statistics.median(getattr(row, field) for row in rows) for field in ("wall", "cpu", "extra")}
        print(f"{name:46}{median['wall']:9.3f}{median['cpu']:9.3f}{median['extra']:11.1f}", flush=True)


def run_async(state, folder, rounds):
    """How long a call keeps training waiting, and the peak of memory until it is written."""
    ours = AsyncCheckpointIO()
    rows = {"dcp.async_save": [], "AsyncCheckpointIO": []}
    for _ in range(rounds):
        with Measured() as figures:
            start = time.perf_counter()
            future = dcp.async_save(state, checkpoint_id=str(folder / "dcp_async"))
            stall = time.perf_counter() - start
            future.result()
        rows["dcp.async_save"].append((stall, figures.cpu, figures.extra))
        del future
        with Measured() as figures:
            start = time.perf_counter()
            ours.save_checkpoint(state, folder / "ours_async", collectives=Alone())
            stall = time.perf_counter() - start
            ours._wait()
        rows["AsyncCheckpointIO"].append((stall, figures.cpu, figures.extra))
    ours.teardown()
    print(f"{'':46}{'stall s':>9}{'CPU s':>9}{'extra MiB':>11}   first stall s, first extra MiB")
    for name, values in rows.items():
        stall, cpu, extra = map(statistics.median, zip(*values, strict=True))
        print(f"{name:46}{stall:9.3f}{cpu:9.3f}{extra:11.1f}   {values[0][0]:.3f}, {values[0][2]:.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1152)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        state = make_state(arguments.mib)
        run(save_cases(state, folder), arguments.rounds)
        run(load_cases(state, folder), arguments.rounds)
        run_async(state, folder, arguments.rounds)
    finally:
        dist.destroy_process_group()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
