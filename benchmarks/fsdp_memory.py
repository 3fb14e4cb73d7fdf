"""Peak memory of a rank, and time of a step, under single_device, ddp and fsdp. Two processes,
gloo.

python benchmarks/fsdp_memory.py [--width 1024] [--layers 12]

Without a policy the units are the layers of the model, as the one written by hand says; None makes
one of all.

Peak is that of the process (ru_maxrss) above what it was before the model was built, so gathered
units, gradients before they are reduced and whatever else a step takes are in it. Held is what
tensors take between two steps. The allocator gives freed memory back at once here (glibc would keep
it, and the peak would be that of its own heap).
"""

import argparse
import functools
import os
import resource
import sys
import time

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from core import Fabric
from core.strategies import FSDPStrategy

MIB = 1024 * 1024
PROMPT_FREE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def build(width, num_layers):
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(num_layers)))


def held_mib(module, optimizer):
    tensors = [
        tensor for parameter in module.parameters() for tensor in (parameter, parameter.grad)
    ]
    tensors += [value for entry in optimizer.state.values() for value in entry.values()]
    storages = [
        (each.to_local() if isinstance(each, DTensor) else each).untyped_storage()
        for each in tensors
    ]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()) / MIB


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(fabric, width, num_layers, on_meta):
    before = peak_mib()
    with fabric.init_module(empty_init=on_meta):
        module = build(width, num_layers)
    model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters()))
    after_setup = peak_mib() - before
    times = []
    for _ in range(4):
        started = time.perf_counter()
        fabric.backward(model(torch.randn(4, width)).pow(2).mean())
        optimizer.step()
        held = held_mib(module, optimizer.optimizer)
        optimizer.zero_grad()
        times.append(time.perf_counter() - started)
    return held, after_setup, peak_mib() - before, min(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    arguments = parser.parse_args()
    sharded = functools.partial(FSDPStrategy, start_method="fork")
    rows = {
        "ddp": ("ddp_fork", False),
        "fsdp, one unit": (sharded(auto_wrap_policy=None), False),
        "fsdp, policy by hand": (sharded(auto_wrap_policy={nn.Linear}), False),
        "fsdp": (sharded(), False),
        "fsdp, one unit, on meta": (sharded(auto_wrap_policy=None), True),
        "fsdp, built on meta": (sharded(), True),
        "fsdp SHARD_GRAD_OP, on meta": (sharded(sharding_strategy="SHARD_GRAD_OP"), True),
    }
    model_mib = 4 * arguments.width**2 * arguments.layers / MIB
    print(f"model {model_mib:.0f} MiB, AdamW; MiB on rank 0")
    print(f"{'':28} {'held':>6} {'peak, set up':>13} {'peak':>6} {'ms a step':>10}")
    for name, (strategy, on_meta) in rows.items():
        fabric = Fabric(strategy=strategy, devices=2, accelerator="cpu")
        held, after_setup, peak, seconds = fabric.launch(
            measure, arguments.width, arguments.layers, on_meta
        )
        print(f"{name:28} {held:6.0f} {after_setup:13.0f} {peak:6.0f} {seconds * 1000:10.0f}")


if __name__ == "__main__":
    if not PROMPT_FREE.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **PROMPT_FREE})
    main()
