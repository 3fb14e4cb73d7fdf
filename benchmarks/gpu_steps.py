"""The steps of `gpu.py`, a process each: `python benchmarks/gpu_steps.py saves` with the variable
GPU_DAY.

A step returns its figures, by name with the unit in it, and raises where something is wrong. All
run on a CPU as well, smaller, with the same code.
"""

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager, suppress
from functools import partial
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import torch
from gpt2 import GPT2, MEDIUM, TINY
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import core
from core import Callback, Fabric, Module, Trainer
from core.checkpoint import AsyncCheckpointIO

DAY = json.loads(
    os.environ.get("GPU_DAY", '{"result": "result.json", "small": true, "limit_s": 600}')
)
SMALL = DAY["small"]
KIND = "cpu" if SMALL else "cuda"
DEVICE = torch.device("cpu") if SMALL else torch.device("cuda", 0)
OFF = dict.fromkeys(
    ("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False
)
MIB = 1 << 20
GPT2_GOAL = 0.99
"""Tokens a second, as a share of the loop by hand."""


class Skip(Exception):
    """This can't be tried here; the text says why."""


def synchronize():
    """Wait for the device."""
    if not SMALL:
        torch.cuda.synchronize(DEVICE)


def seconds(function):
    """The wall time of a call, its work on the device included."""
    synchronize()
    began = time.perf_counter()
    function()
    synchronize()
    return time.perf_counter() - began


@contextmanager
def folder():
    """A temporary folder beside the report, whose disk is the one that is meant."""
    path = Path(tempfile.mkdtemp(dir=Path(DAY["result"]).parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def make_trainer(**options):
    """A quiet Trainer on one device."""
    return Trainer(**{**OFF, "accelerator": KIND, "devices": 1, "max_epochs": 1, **options})


class Net(Module):
    """A small regression with dropout; keeps its losses."""

    def __init__(self, width=64):
        super().__init__()
        torch.manual_seed(1)
        self.width = width
        self.layers = nn.Sequential(
            nn.Linear(16, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 1)
        )
        self.losses = []

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.layers(batch[0]).float(), batch[1].float())

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(outputs.detach())

    def configure_optimizers(self):
        # Adam's eps is 0 in float16
        return torch.optim.SGD(self.parameters(), lr=0.64 / self.width, momentum=0.5)


def loader(num_samples=256):
    """Batches of 16."""
    inputs = torch.randn(num_samples, 16, generator=torch.Generator().manual_seed(2))
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16)


def expect(is_so, text):
    """Raise with this text if it isn't so."""
    if not is_so:
        raise AssertionError(text)


# the steps ----------------------------------------------------------------------------------------


def detected():
    """Versions, devices and drivers."""
    figures = {
        "core": core.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda or torch.version.hip,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "num_devices": torch.cuda.device_count(),
    }
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        figures[f"device {index}"] = (
            f"{about.name}, {about.total_memory / 1e9:.1f} GB, {about.major}.{about.minor}"
        )
    if not SMALL:
        figures |= {
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "cudnn": torch.backends.cudnn.version(),
        }
        if shutil.which("nvidia-smi"):
            query = [
                "nvidia-smi",
                "--query-gpu=driver_version,pcie.link.gen.current,pcie.link.width.current",
            ]
            done = subprocess.run(
                [*query, "--format=csv,noheader"], capture_output=True, text=True, check=False
            )
            figures["driver, PCIe"] = done.stdout.strip().replace("\n", "; ")
    for name in ("deepspeed", "triton", "transformer_engine"):
        with suppress(metadata.PackageNotFoundError):
            figures[name] = metadata.version(name)
    strategy = Trainer(**OFF).strategy
    figures["core chooses"] = (
        f"{type(strategy).__name__} on {[str(device) for device in strategy.parallel_devices]}"
    )
    expect(
        SMALL or strategy.root_device.type == "cuda",
        f"a GPU is here, and core chooses {strategy.root_device}",
    )
    return figures


def precisions():
    """Losses of each precision beside those of float32, and what a real overflow does."""
    figures, first = {}, None
    for precision in ("32-true", "bf16-mixed", "16-mixed", "16-true"):
        module = Net()
        module.layers[2].p = 0.0
        try:
            # float16 begins with a scale that is too large, and skips its first steps: of 64 that
            # makes no difference.
            make_trainer(precision=precision, max_epochs=4).fit(module, loader())
        except Exception as error:
            if SMALL:  # a CPU doesn't have all of them
                figures[precision] = f"not here: {type(error).__name__}"
                continue
            raise
        losses = torch.stack(module.losses).float()
        last = losses[-4:].mean().item()
        first = first if first is not None else last
        figures[f"{precision}, last loss"] = round(last, 4)
        expect(last < losses[0].item(), f"{precision}: the loss doesn't fall, {losses.tolist()}")
        expect(
            abs(last - first) < 0.2 * first + 0.1, f"{precision}: {last} beside {first} in float32"
        )
    if "16-mixed" not in figures:
        figures |= overflow()
    return figures


class Overflowing(Net):
    """Its third batch has gradients that are infinite in float16."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append(self.layers[0].weight.detach().clone())
        return super().training_step(batch, batch_idx) * (1e30 if batch_idx == 2 else 1.0)


def overflow():
    """A step whose gradients overflow float16 changes no weight, and a later one does."""
    module = Overflowing()
    make_trainer(precision="16-mixed").fit(module, loader())
    expect(
        torch.equal(module.seen[2], module.seen[3]),
        "a step whose gradients are infinite has changed weights",
    )
    changed = [not torch.equal(before, after) for before, after in pairwise(module.seen[3:])]
    expect(any(changed), "nothing is learned after an overflow")
    expect(
        all(weight.isfinite().all() for weight in module.parameters()),
        "weights aren't finite after an overflow",
    )
    return {"16-mixed, steps until it learns again": changed.index(True) + 1}


def make_state(num_mib):
    """A module of so many MiB, with Adam's moments three times as much, that has stepped."""
    fabric = Fabric(accelerator=KIND, devices=1)
    width = round((num_mib * MIB / 4 / 8) ** 0.5)
    module = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(8)))
    module, optimizer = fabric.setup(module, torch.optim.Adam(module.parameters(), lr=1e-3))
    for parameter in module.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    num_bytes = 3 * sum(parameter.nbytes for parameter in module.parameters())
    return fabric, module, optimizer, num_bytes


def rate(num_bytes, took):
    """GB/s."""
    return round(num_bytes / took / 1e9, 2)


def saves():
    """Bandwidth of saves and loads, beside that of a plain copy from the device."""
    fabric, module, optimizer, num_bytes = make_state(4 if SMALL else 340)
    moments = [
        each for entry in optimizer.state.values() for each in entry.values() if each.numel() > 1
    ]
    tensors = [*module.parameters(), *moments]
    pinned = [torch.empty(each.shape, dtype=each.dtype, pin_memory=not SMALL) for each in tensors]

    def copy():
        with torch.no_grad():
            for target, source in zip(pinned, tensors, strict=True):
                target.copy_(source, non_blocking=True)

    copy()
    figures = {
        "state, MB": round(num_bytes / 1e6),
        "plain copy to pinned memory, GB/s": rate(num_bytes, seconds(copy)),
    }
    pageable = seconds(lambda: [each.detach().to("cpu", copy=True) for each in tensors])
    figures["plain copy to pageable memory, GB/s"] = rate(num_bytes, pageable)
    with folder() as path:
        state = {"model": module, "optimizer": optimizer}
        took = [
            seconds(partial(fabric.save, path / f"{number}.ckpt", state)) for number in range(3)
        ]
        figures["save, GB/s"] = rate(num_bytes, min(took))
        before = [each.detach().clone() for each in tensors]
        for each in tensors:
            each.detach().zero_()
        took = [seconds(partial(fabric.load, path / "2.ckpt", state)) for _ in range(3)]
        figures["load, GB/s"] = rate(num_bytes, min(took))
        moments = [
            each
            for entry in optimizer.state.values()
            for each in entry.values()
            if each.numel() > 1
        ]
        found = [*module.parameters(), *moments]
        same = all(torch.equal(one, other) for one, other in zip(before, found, strict=True))
        expect(same, "what was loaded isn't what was saved")
    fabric.teardown()
    return figures


def asynchronous_saves():
    """How long a save holds up a loop that goes on, and that what is saved is of the moment of the
    call.
    """
    fabric, module, optimizer, num_bytes = make_state(4 if SMALL else 340)
    io = AsyncCheckpointIO()
    fabric.strategy.checkpoint_io = io
    inputs = torch.randn(512, next(module.parameters()).shape[1], device=DEVICE)

    def step():
        fabric.backward(module(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    figures = {"state, MB": round(num_bytes / 1e6)}
    with folder() as path:
        step()
        usual = statistics.median(seconds(step) for _ in range(5))
        calls, steps = [], []
        for number in range(3):
            expected = [parameter.detach().clone() for parameter in module.parameters()]
            synchronize()
            began = time.perf_counter()
            fabric.save(path / f"{number}.ckpt", {"model": module, "optimizer": optimizer})
            calls.append(time.perf_counter() - began)
            steps.append(seconds(step))
            saved = fabric.load(path / f"{number}.ckpt")
            found = list(saved["model"].values())
            same = all(torch.equal(a.cpu(), b) for a, b in zip(expected, found, strict=True))
            expect(same, "a step after the save has changed what was saved")
        io.teardown()
    figures |= {
        "a step, ms": round(1000 * usual, 2),
        "the call, ms": [round(1000 * each, 2) for each in calls],
        "the step after it, ms": [round(1000 * each, 2) for each in steps],
    }
    fabric.teardown()
    return figures


def resume():
    """A run with dropout that is stopped and goes on, bit by bit as one that wasn't."""
    with folder() as path:
        whole = Net()
        make_trainer(max_epochs=4, deterministic=True).fit(whole, loader())
        first = Net()
        trainer = make_trainer(max_epochs=2, deterministic=True)
        trainer.fit(first, loader())
        trainer.save_checkpoint(path / "two.ckpt")
        torch.manual_seed(99)
        second = Net()
        make_trainer(max_epochs=4, deterministic=True).fit(
            second, loader(), ckpt_path=path / "two.ckpt"
        )
    for name, value in whole.state_dict().items():
        expect(
            torch.equal(value.cpu(), second.state_dict()[name].cpu()),
            f"{name} differs from that of an unbroken run",
        )
    return {"last loss": whole.losses[-1].item(), "weights": "bit-equal"}


def compiled():
    """A compiled run beside an eager one."""
    losses, figures = {}, {}
    # What inductor generates for a CPU takes a compiler and a minute.
    for name, options in {
        "eager": False,
        "compiled": {"backend": "aot_eager"} if SMALL else True,
    }.items():
        module = Net()
        module.layers[2].p = 0.0
        figures[f"{name}, s"] = round(
            seconds(partial(make_trainer(compile=options).fit, module, loader())), 2
        )
        losses[name] = torch.stack(module.losses).float().cpu()
    torch.testing.assert_close(losses["eager"], losses["compiled"], rtol=1e-3, atol=1e-4)
    return figures


HANG = """
import pickle, sys, time
from datetime import timedelta
import torch
from core import Fabric
from core.watch import WatchdogOptions

def recorded():
    import torch._C._distributed_c10d as c10d
    dumps = [(name, getattr(c10d, name, None)) for name in ("_dump_nccl_trace", "_dump_fr_trace")]
    return {name: len(pickle.loads(dump()).get("entries", [])) for name, dump in dumps if dump}

def train(fabric):
    fabric.all_reduce(torch.ones(2, device=fabric.device))
    if fabric.global_rank == 1:
        time.sleep(600)
    backend = torch.distributed.group.WORLD._get_backend(fabric.device)
    print("RECORDED", type(backend).__name__, recorded(), flush=True)
    fabric.all_reduce(torch.ones(2, device=fabric.device))
    if fabric.device.type == "cuda":
        torch.cuda.synchronize()

if __name__ == "__main__":
    watch = WatchdogOptions(limit=timedelta(seconds=3), end_after=timedelta(seconds=6), grace=timedelta(seconds=5))
    Fabric(accelerator=sys.argv[1], devices=2, strategy="ddp_spawn", watch=watch).launch(train)
"""


def hang(variables):
    """A rank that sleeps while the other waits for it in a collective."""
    if KIND != "cpu" and torch.accelerator.device_count() < 2:
        raise Skip("one device: no rank waits for another")
    with folder() as path:
        path.joinpath("hang.py").write_text(HANG)
        began = time.perf_counter()
        command = [sys.executable, path / "hang.py", KIND]
        limit_s = DAY["limit_s"] - 5
        done = subprocess.run(
            command,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    expect(done.returncode != 0, "a run of which one rank hangs has ended well")
    found = next((line for line in done.stderr.splitlines() if "HangError" in line), "")
    expect("ank 1" in found, f"rank 1 isn't named: {done.stderr[-800:]}")
    recorded = next((line for line in done.stdout.splitlines() if line.startswith("RECORDED")), "")
    return {
        "told after, s": round(time.perf_counter() - began, 1),
        "told": found,
        "backend, recorders": recorded[9:],
    }


def hang_legacy():
    """The same on the engine that `nccl` was before torch 2.15."""
    if SMALL or not hasattr(torch.distributed, "ProcessGroupNCCL2"):
        raise Skip("this torch has one engine of NCCL, or there is no GPU")
    return hang({"TORCH_DIST_USE_NCCL2": "0"})


def memory():
    """Memory statistics of the accelerator, and the memory that a run leaves behind."""
    accelerator = Trainer(**OFF, accelerator=KIND, devices=1).strategy.accelerator
    before = accelerator.memory_stats(DEVICE)
    if not before:
        raise Skip(f"{accelerator.name} has no figures")
    held = torch.empty(64 * MIB, dtype=torch.uint8, device=DEVICE)
    during = accelerator.memory_stats(DEVICE)
    if "allocated_bytes" in during:
        grown = during["allocated_bytes"] - before["allocated_bytes"]
        expect(grown >= 64 * MIB, f"64 MiB more are {grown} bytes in memory_stats")
    del held
    module = Net(width=4096)
    make_trainer().fit(module, loader())
    stats = {"before": before, "after fit": accelerator.memory_stats(DEVICE)}
    return {f"{name} {when}": value for when, each in stats.items() for name, value in each.items()}


# GPT-2 --------------------------------------------------------------------------------------------


class Language(Module):
    """GPT-2 in a Trainer."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        return self.model.loss(batch)

    def configure_optimizers(self):
        return make_optimizer(self.model)


class Clock(Callback):
    """The time from after the warm-up to the end."""

    def __init__(self, num_warm):
        self.num_warm, self.began, self.took = num_warm, 0.0, 0.0

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == self.num_warm:
            synchronize()
            self.began = time.perf_counter()

    def on_train_end(self, trainer, module):
        synchronize()
        self.took = time.perf_counter() - self.began


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4, fused=not SMALL)


def by_hand(model, batches, num_warm):
    """The loop that the Trainer is compared with."""
    model.to(DEVICE).train()
    optimizer = make_optimizer(model)
    began = 0.0
    for number, batch in enumerate(batches):
        if number == num_warm:
            synchronize()
            began = time.perf_counter()
        batch = batch.to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = model.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    synchronize()
    return time.perf_counter() - began


def with_trainer(module, batches, num_warm):
    clock = Clock(num_warm)
    make_trainer(precision="bf16-mixed", callbacks=[clock]).fit(module, batches)
    return clock.took


def gpt2():
    """Tokens a second of both, in turns, and the memory of each at its peak."""
    config = TINY if SMALL else MEDIUM
    batch_size = 2 if SMALL or torch.cuda.get_device_properties(0).total_memory < 20e9 else 8
    num_warm, num_steps = (2, 6) if SMALL else (3, 20)
    generator = torch.Generator().manual_seed(3)
    batches = [
        torch.randint(config.vocabulary, (batch_size, config.context + 1), generator=generator)
        for _ in range(num_warm + num_steps)
    ]
    batches = batches if SMALL else [batch.pin_memory() for batch in batches]
    models = [GPT2(config), GPT2(config)]
    models[1].load_state_dict(models[0].state_dict())
    own, module = models[0], Language(models[1])
    peaks, rates = {"by hand": [], "Trainer": []}, {"by hand": [], "Trainer": []}
    deadline = time.perf_counter() + 0.6 * DAY["limit_s"]
    rounds = 0
    while rounds < 2 or (rounds < 9 and time.perf_counter() < deadline):
        contenders = [
            ("by hand", partial(by_hand, own, batches, num_warm)),
            ("Trainer", partial(with_trainer, module, batches, num_warm)),
        ]
        for name, contender in contenders if rounds % 2 else contenders[::-1]:
            for each in models:  # both begin on the host, wherever the last round has left them
                each.to("cpu")
            if not SMALL:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                resident = torch.cuda.memory_allocated()
            took = contender()
            rates[name].append(num_steps * batch_size * config.context / took)
            if not SMALL:
                peaks[name].append(torch.cuda.max_memory_allocated() - resident)
            for each in models:
                each.zero_grad(set_to_none=True)
        rounds += 1
    # The first round has warmed up what there is to warm up.
    ratios = [
        ours / theirs
        for ours, theirs in zip(rates["Trainer"][1:], rates["by hand"][1:], strict=True)
    ]
    figures = {
        "parameters, M": round(sum(each.numel() for each in own.parameters()) / 1e6, 1),
        "batch": f"{batch_size} x {config.context}",
        **{f"{name}, tokens/s": round(statistics.median(each[1:])) for name, each in rates.items()},
        "Trainer / by hand": round(statistics.median(ratios), 4),
        "rounds": [round(each, 4) for each in ratios],
    }
    figures |= {
        f"{name}, peak MB above what rests": round(max(each[1:]) / 1e6)
        for name, each in peaks.items()
        if each
    }
    if not SMALL:
        expect(figures["Trainer / by hand"] >= GPT2_GOAL, f"{figures}: the goal is {GPT2_GOAL}")
    return figures


STEPS = {
    "detected": detected,
    "hang": partial(hang, {}),
    "hang-legacy": hang_legacy,
    "precisions": precisions,
    "saves": saves,
    "asynchronous-saves": asynchronous_saves,
    "resume": resume,
    "compile": compiled,
    "memory": memory,
    "gpt2": gpt2,
}


def main():
    """Run the step that the command line names, and write what came of it."""
    verdict, why, figures = "passed", "", {}
    try:
        figures = STEPS[sys.argv[1]]()
    except Skip as error:
        verdict, why = "skipped", str(error)
    except Exception as error:
        verdict, why = (
            "failed",
            f"{type(error).__name__}: {error}\n{traceback.format_exc()[-3000:]}",
        )
    Path(DAY["result"]).write_text(
        json.dumps({"verdict": verdict, "why": why, "figures": figures}, default=str)
    )


if __name__ == "__main__":
    main()
