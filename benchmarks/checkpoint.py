"""Saving and loading 1,152 MiB of model and Adam state, interleaved with what torch offers and with
a plain read.

    python benchmarks/checkpoint.py [--mib 1152] [--rounds 5] [--folder FOLDER] [--only running]

Times are medians. CPU counts all threads of the process. "extra" is how far the resident memory
rose above what it was before the call; mapped pages of the file count, where a call maps it.
"anonymous" is the part of it that no file backs, as another process saw it, every millisecond.
`ratio` is CPU time, as a multiple of the first row's in the same round.

The sections, which --only names: save, load, running (into a model and its Adam that have trained a
step), async, and sharded (the same under FSDP on two processes, where figures are rank 0's).
"""

import argparse
import ctypes
import gc
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import xxhash
from torch import nn

from core import Fabric
from core.checkpoint import AsyncCheckpointIO, DistributedCheckpointIO, TorchCheckpointIO
from core.strategies import FSDPStrategy

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
    moments = {
        name: {"exp_avg": torch.randn(width, width), "exp_avg_sq": torch.rand(width, width)}
        for name in names
    }
    return {"model": weights, "optimizer": {"state": moments}}


def resident(field, process="self"):
    with open(f"/proc/{process}/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field))


def watch_anonymous(process, pipe):
    """In a process of its own: the peak of another one's anonymous memory between two messages."""
    while pipe.recv():
        peak = resident("RssAnon:", process)
        pipe.send(None)
        while not pipe.poll(0.001):
            peak = max(peak, resident("RssAnon:", process))
        pipe.recv()
        pipe.send(max(peak, resident("RssAnon:", process)))


class Watcher:
    """Another process that looks at the memory of this one."""

    def __init__(self):
        context = multiprocessing.get_context("fork")
        self.pipe, other = context.Pipe()
        self.process = context.Process(
            target=watch_anonymous, args=(os.getpid(), other), daemon=True
        )
        self.process.start()

    def ask(self):
        self.pipe.send(True)
        return self.pipe.recv()

    def end(self):
        self.pipe.send(False)
        self.process.join()


class Measured:
    """Wall and CPU seconds of a call, and how many MiB the resident memory rose."""

    def __init__(self, watcher=None):
        self.watcher, self.anonymous = watcher, 0.0

    def __enter__(self):
        gc.collect()
        if self.watcher is not None:
            self.anonymous = resident("RssAnon:")
            self.watcher.ask()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        self.before = resident("VmRSS:")
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_):
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        self.extra = resident("VmHWM:") - self.before
        if self.watcher is not None:
            self.anonymous = self.watcher.ask() - self.anonymous


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
        "torch.save to a new name, fsync, rename": lambda: replacing_torch_save(
            state, folder / "replaced.pt"
        ),
        "dcp.save": lambda: dcp.save(state, checkpoint_id=str(folder / "dcp"), no_dist=True),
        "DistributedCheckpointIO": lambda: distributed.save_checkpoint(
            state, folder / "ours", collectives=Alone()
        ),
        "TorchCheckpointIO": lambda: single.save_checkpoint(
            state, folder / "single.ckpt", collectives=Alone()
        ),
    }


def load_cases(state, folder):
    distributed = DistributedCheckpointIO()
    path = folder / "torch.pt"

    def in_place(state):
        distributed.load_checkpoint(folder / "ours", collectives=Alone(), state=state)

    return {
        "torch.load(mmap=True)": lambda: torch.load(path, mmap=True, weights_only=True),
        "  and every element read": lambda: touch(torch.load(path, mmap=True, weights_only=True)),
        "DistributedCheckpointIO, verified": lambda: distributed.load_checkpoint(
            folder / "ours", collectives=Alone()
        ),
        "  and every element read ": lambda: touch(
            distributed.load_checkpoint(folder / "ours", collectives=Alone())
        ),
        "DistributedCheckpointIO, verified, in place": lambda: in_place(state),
        "dcp.load, in place, not verified": lambda: dcp.load(
            state, checkpoint_id=str(folder / "dcp"), no_dist=True
        ),
    }


def warm(folder, mib):
    """Make the pages that a save will use the newest free ones, for each case alike.

    A virtual machine may hand free memory back to its host, and whoever uses it next pays for
    fetching it.
    """
    piece = bytes(4 * MIB)
    with open(folder / "ballast", "wb") as file:
        for _ in range(mib // 4 + 32):
            file.write(piece)
    (folder / "ballast").unlink()


def run(cases, rounds, before=lambda: None, say=print):
    measured = {name: [] for name in cases}
    watcher = Watcher()
    for _ in range(rounds):
        for name, case in cases.items():
            before()
            with Measured(watcher) as figures:
                result = case()
            del result
            measured[name].append(figures)
    watcher.end()
    first = [row.cpu for row in next(iter(measured.values()))]
    say(f"{'':46}{'wall s':>9}{'CPU s':>9}{'ratio':>7}{'extra MiB':>11}{'anonymous':>11}")
    for name, rows in measured.items():
        wall, cpu, extra, anonymous = (
            statistics.median(getattr(row, field) for row in rows)
            for field in ("wall", "cpu", "extra", "anonymous")
        )
        ratio = statistics.median(row.cpu / one for row, one in zip(rows, first, strict=True))
        say(f"{name:46}{wall:9.3f}{cpu:9.3f}{ratio:7.2f}{extra:11.1f}{anonymous:11.1f}")


def data_files(path):
    return sorted(Path(path).glob("*.data"))


def read_through(files, piece_bytes):
    """Read and hash, through a buffer that is used again and again."""
    buffer, digest = memoryview(bytearray(piece_bytes)), xxhash.xxh3_128()
    for name in files:
        with open(name, "rb", buffering=0) as file:
            while size := file.readinto(buffer):
                digest.update(buffer[:size])


def read_into(files, tensors):
    """Read and hash, into as many bytes as are read: where they are to be in the end, as far as a
    plain read knows.
    """
    memory = iter(tensors)
    for name in files:
        with open(name, "rb", buffering=0) as file:
            size = 1
            while size and (tensor := next(memory, None)) is not None:
                view = memoryview(
                    (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
                ).cast("B")
                for start in range(0, len(view), MIB):
                    size = file.readinto(view[start : start + MIB])
                    xxhash.xxh3_128_intdigest(view[start : start + size])


def build(mib):
    """A model whose weights and Adam's moments take `mib`."""
    width = round((mib * MIB / 3 / 4 / LAYERS) ** 0.5)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(LAYERS)))


def train_a_step(fabric, model, optimizer):
    width = next(model.parameters()).shape[1]
    fabric.backward(model(torch.randn(2, width)).square().mean())
    optimizer.step()
    optimizer.zero_grad()


def plain_state(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def torch_load(path, model, optimizer, **options):
    saved = torch.load(path, weights_only=True, **options)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])


def dcp_load(path, model, optimizer):
    state = plain_state(model, optimizer)
    dcp.load(state, checkpoint_id=str(path), no_dist=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def run_running(folder, mib, rounds):
    """Loads into a model and an optimizer that are there."""
    fabric = Fabric(accelerator="cpu")
    model = build(mib)
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters()))
    train_a_step(fabric, model, optimizer)
    state, own = {"model": model, "optimizer": optimizer}, (model.module, optimizer.optimizer)
    fabric.save(folder / "running", state)
    torch.save(plain_state(*own), folder / "running.pt")
    dcp.save(plain_state(*own), checkpoint_id=str(folder / "running_dcp"), no_dist=True)
    twice = Fabric(accelerator="cpu", plugins=DistributedCheckpointIO(verifies_first=True))
    model = build(mib)
    model, optimizer = twice.setup(model, torch.optim.Adam(model.parameters()))
    train_a_step(twice, model, optimizer)
    files = data_files(folder / "running")
    tensors = [
        *own[0].parameters(),
        *(entry[key] for entry in own[1].state.values() for key in entry if key != "step"),
    ]
    cases = {
        "read + xxh3, into as much memory": lambda: read_into(files, tensors),
        "read + xxh3, into a buffer of 1 MiB": lambda: read_through(files, MIB),
        "read + xxh3, into a buffer of 64 KiB": lambda: read_through(files, 64 << 10),
        "Fabric.load, every byte verified": lambda: fabric.load(folder / "running", state),
        "  verifies_first": lambda: twice.load(
            folder / "running", {"model": model, "optimizer": optimizer}
        ),
        "torch.load(mmap=True), load_state_dict": lambda: torch_load(
            folder / "running.pt", *own, mmap=True
        ),
        "torch.load, load_state_dict": lambda: torch_load(folder / "running.pt", *own),
        "dcp.load, load_state_dict": lambda: dcp_load(folder / "running_dcp", *own),
    }
    run(cases, rounds)


def sharded_rank(fabric, folder, mib, rounds):
    model = build(mib)
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters()))
    train_a_step(fabric, model, optimizer)
    state = {"model": model, "optimizer": optimizer}
    fabric.save(folder / "sharded", state)
    rank = fabric.global_rank
    moments = (
        entry[key] for entry in optimizer.optimizer.state.values() for key in entry if key != "step"
    )
    tensors = [one.detach().to_local() for one in (*model.parameters(), *moments)]
    files = [
        name for name in data_files(folder / "sharded") if name.name.endswith(f"{rank:05}.data")
    ]
    cases = {
        "read + xxh3 of its part, into as much memory": lambda: read_into(files, tensors),
        "read + xxh3 of its part, a buffer of 1 MiB": lambda: read_through(files, MIB),
        "Fabric.load of what two ranks saved": lambda: fabric.load(folder / "sharded", state),
        "Fabric.load of what one process saved": lambda: fabric.load(folder / "running", state),
    }
    run(cases, rounds, fabric.barrier, print if rank == 0 else lambda _: None)


def run_sharded(folder, mib, rounds):
    """The same under FSDP: each of two ranks has a half."""
    alone = Fabric(accelerator="cpu")
    model = build(mib)
    model, optimizer = alone.setup(model, torch.optim.Adam(model.parameters()))
    train_a_step(alone, model, optimizer)
    alone.save(folder / "running", {"model": model, "optimizer": optimizer})
    del model, optimizer, alone
    strategy = FSDPStrategy(start_method="fork", auto_wrap_policy={nn.Linear})
    Fabric(strategy=strategy, devices=2, accelerator="cpu").launch(
        sharded_rank, folder, mib, rounds
    )


def run_async(state, folder, rounds, mib):
    """The time for which a call keeps training waiting, beside a copy of as many bytes, and what it
    does meanwhile.
    """
    ours = AsyncCheckpointIO()
    sources = [
        tensor
        for part in (state["model"], *state["optimizer"]["state"].values())
        for tensor in part.values()
    ]
    kept = [tensor.clone() for tensor in sources]

    def memcpy():
        for target, source in zip(kept, sources, strict=True):
            ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
        return lambda: None

    def copy():
        for target, source in zip(kept, sources, strict=True):
            target.copy_(source)
        return lambda: None

    def save_ours():
        ours.save_checkpoint(state, folder / "ours_async", collectives=Alone())
        return ours._wait

    def save_dcp():
        return dcp.async_save(state, checkpoint_id=str(folder / "dcp_async")).result

    cases = {
        "memcpy of the state, into kept memory": memcpy,
        "torch's copy_ of the same": copy,
        "AsyncCheckpointIO": save_ours,
        "dcp.async_save": save_dcp,
    }
    rows = {name: [] for name in cases}
    for _ in range(rounds + 1):
        for name, save in cases.items():
            warm(folder, mib)
            with Measured() as figures:
                start, cpu = time.perf_counter(), time.thread_time()
                finish = save()
                stall, cpu = time.perf_counter() - start, time.thread_time() - cpu
                finish()
            del finish
            rows[name].append((stall, cpu, figures.cpu, figures.extra))
    first = [row[1] for row in rows["memcpy of the state, into kept memory"]]
    print(
        f"{'':46}{'stall s':>9}{'CPU s':>9}{'ratio':>7}{'all CPU':>9}{'extra MiB':>11}   stall of "
        "the first call"
    )
    for name, measured in rows.items():
        ratio = statistics.median(
            row[1] / one for row, one in list(zip(measured, first, strict=True))[1:]
        )
        stall, cpu, whole, extra = map(statistics.median, zip(*measured[1:], strict=True))
        print(
            f"{name:46}{stall:9.3f}{cpu:9.3f}{ratio:7.2f}{whole:9.3f}{extra:11.1f}   "
            f"{measured[0][0]:.3f}",
            flush=True,
        )
    ours.teardown()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1152)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    sections = ("save", "load", "running", "async", "sharded")
    parser.add_argument("--only", choices=sections, nargs="+", default=sections)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        if "sharded" in arguments.only:  # first, while there is little to fork, and no group
            run_sharded(folder, arguments.mib, arguments.rounds)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        if "running" in arguments.only:
            run_running(folder, arguments.mib, arguments.rounds)
        state = (
            make_state(arguments.mib) if {"save", "load", "async"} & set(arguments.only) else None
        )
        if "save" in arguments.only or "load" in arguments.only:
            run(save_cases(state, folder), arguments.rounds, lambda: warm(folder, arguments.mib))
        if "load" in arguments.only:
            run(load_cases(state, folder), arguments.rounds)
        if "async" in arguments.only:
            run_async(state, folder, arguments.rounds, arguments.mib)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
