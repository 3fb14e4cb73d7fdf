"""Peak memory of the largest rank of a pipeline of 1, 2 and 4 ranks, built eagerly and on meta.
gloo, CPU.

python benchmarks/pipeline_memory.py [--width 1024] [--layers 24]

Peak is that of the process (ru_maxrss) above what it was before the model was built: after set-up,
and after four steps of AdamW. Held is what the rank's parameters, gradients and optimizer state
take between two steps. The allocator gives freed memory back at once here (glibc would keep it, and
the peak would be that of its own heap).
"""

import argparse
import os
import resource
import sys

import torch
from torch import nn

from core import Fabric
from core_parallel import MeshParallelStrategy

MIB = 1024 * 1024
PROMPT_FREE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def held_mib(module, optimizer):
    # not those of other stages
    own = [parameter for parameter in module.parameters() if not parameter.is_meta]
    tensors = [tensor for parameter in own for tensor in (parameter, parameter.grad)]
    tensors += [value for entry in optimizer.state.values() for value in entry.values()]
    return (
        sum(one.nbytes for one in tensors if isinstance(one, torch.Tensor) and not one.is_meta)
        / MIB
    )


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(fabric, width, num_layers, on_meta):
    before = peak_mib()
    with fabric.init_module(empty_init=on_meta):
        module = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(num_layers)))
    model = fabric.setup(module)
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters()))
    after_setup, held = peak_mib() - before, 0.0
    for _ in range(4):
        fabric.backward(model(torch.randn(4, width)).pow(2).mean())
        optimizer.step()
        held = held_mib(module, optimizer.optimizer)
        optimizer.zero_grad()
    rows = fabric.all_gather(
        torch.tensor([held, after_setup, peak_mib() - before], dtype=torch.float64)
    )
    return rows.reshape(-1, 3).amax(0).tolist()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=24)
    arguments = parser.parse_args()
    print(
        f"model {4 * arguments.width**2 * arguments.layers / MIB:.0f} MiB, AdamW; MiB on the "
        "largest rank"
    )
    print(f"{'pipeline':>8} {'built':>8} {'held':>6} {'peak, set up':>13} {'peak':>6}")
    for size in (1, 2, 4):
        for on_meta in (False, True) if size > 1 else (False,):
            strategy = MeshParallelStrategy(pipeline=size, start_method="fork")
            fabric = Fabric(strategy=strategy, devices=size, accelerator="cpu")
            held, after_setup, peak = fabric.launch(
                measure, arguments.width, arguments.layers, on_meta
            )
            built = "on meta" if on_meta else "eagerly"
            print(f"{size:8} {built:>8} {held:6.0f} {after_setup:13.0f} {peak:6.0f}", flush=True)


if __name__ == "__main__":
    if not PROMPT_FREE.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **PROMPT_FREE})
    main()
