"""Saving and loading 1,152 MiB of model and Adam state, interleaved with what torch offers.

    python benchmarks/checkpoint.py [--mib 1152] [--rounds 5] [--folder FOLDER]

Times are medians. CPU counts all threads of the process. "extra" is how far the resident memory rose above what it was
before the call; mapped pages of the file count, where a call maps it.
"""

import argparse
import gc
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
        gc.collect()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        self.before = resident("VmRSS:")
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_):
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        self.extra = resident("VmHWM:") - self.before


def replacing_torch_save(state, path):
    """Save beside the old one, which is there until the new one is, as ours does."""
    new = path.with_suffix(".new")
    with open(new, "wb") as file:
        torch.save(state, file)
        os.fsync(file.fileno())
    new.rename(path)


def touch(value):
    """Read every element, as whoever uses a mapped state does."""
    if isinstance(value, dict):
        return sum(touch(item) for item in value.values())
    return value.view(torch.int32).sum().item()


def save_cases(state, folder):
    distributed, single = DistributedCheckpointIO(), TorchCheckpointIO()
    return {
        "torch.save": lambda: torch.save(state, folder / "torch.pt"),
        "torch.save to a new name, fsync, rename": lambda: replacing_torch_save(state, folder / "replaced.pt"),
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


def warm(folder, mib):
    """Make the pages that a save will use the newest free ones, for each case alike.

    A virtual machine may hand free memory back to its host, and whoever uses it next pays for fetching it.
    """
    piece = bytes(4 * MIB)
    with open(folder / "ballast", "wb") as file:
        for _ in range(mib // 4 + 32):
            file.write(piece)
    (folder / "ballast").unlink()


def run(cases, rounds, before=lambda: None):
    measured = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            before()
            with Measured() as figures:
                result = case()
            del result
            measured[name].append(figures)
    print(f"{'':46}{'wall s':>9}{'CPU s':>9}{'extra MiB':>11}")
    for name, rows in measured.items():
        median = {field: statistics.median(getattr(row, field) for row in rows) for field in ("wall", "cpu", "extra")}
        print(f"{name:46}{median['wall']:9.3f}{median['cpu']:9.3f}{median['extra']:11.1f}", flush=True)


def run_async(state, folder, rounds):
    """The time for which a call keeps training waiting, and the peak of memory until it is written."""
    ours = AsyncCheckpointIO()

    def save_ours():
        ours.save_checkpoint(state, folder / "ours_async", collectives=Alone())
        return ours._wait

    def save_dcp():
        return dcp.async_save(state, checkpoint_id=str(folder / "dcp_async")).result

    print(f"{'':46}{'stall s':>9}{'CPU s':>9}{'extra MiB':>11}   of the first call")
    for name, save in {"AsyncCheckpointIO": save_ours, "dcp.async_save": save_dcp}.items():
        rows = []
        for _ in range(rounds):
            with Measured() as figures:
                start = time.perf_counter()
                finish = save()
                stall = time.perf_counter() - start
                finish()
            del finish
            rows.append((stall, figures.cpu, figures.extra))
        stall, cpu, extra = map(statistics.median, zip(*rows, strict=True))
        first = ", ".join(f"{value:.3f}" for value in rows[0])
        print(f"{name:46}{stall:9.3f}{cpu:9.3f}{extra:11.1f}   {first}", flush=True)
    ours.teardown()


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
        run(save_cases(state, folder), arguments.rounds, lambda: warm(folder, arguments.mib))
        run(load_cases(state, folder), arguments.rounds)
        run_async(state, folder, arguments.rounds)
    finally:
        dist.destroy_process_group()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
