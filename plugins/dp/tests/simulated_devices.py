"""Devices on which torch's own DataParallel works: those of `tests/downstream/sim-device`.

torch compiles the three functions with which DataParallel copies between devices for CUDA only, so
that a build for the CPU has none of them: they are here. All else is torch's: replicas, threads,
what backward adds up. To import this module is to register the device and the functions in this
process, for good.
"""

import sys
import warnings
from pathlib import Path

import torch

from core import ACCELERATOR_REGISTRY, STRATEGY_REGISTRY

sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "downstream" / "sim-device"))
from sim_device import SimAccelerator, SimStrategy, backend

ACCELERATOR_REGISTRY.register("sim", SimAccelerator)
STRATEGY_REGISTRY.register("sim_single", SimStrategy)


def _broadcast_coalesced(tensors, devices, buffer_size):
    _, *others = devices
    return [list(tensors), *([tensor.clone() for tensor in tensors] for _ in others)]


def _scatter(tensor, devices, chunk_sizes, dim, streams):
    parts = (
        tensor.chunk(len(devices), dim)
        if chunk_sizes is None
        else tensor.split(list(chunk_sizes), dim)
    )
    return [part.to("sim") for part in parts]


def _gather(tensors, dim, destination):
    return torch.cat(tensors, dim)


for _function in (_broadcast_coalesced, _scatter, _gather):
    setattr(torch._C, _function.__name__, _function)
# DataParallel enters autocast, turned off, in each thread.
backend.SimModule.get_amp_supported_dtype = lambda self: []
# It asks whether NCCL could add gradients, which warns.
warnings.filterwarnings("ignore", "PyTorch is not compiled with NCCL support")
