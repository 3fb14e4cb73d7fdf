"""Gaudi devices for `core`: `Trainer(accelerator="hpu", devices=8)`."""

from core_hpu._version import __version__
from core_hpu.accelerator import HPUAccelerator
from core_hpu.presets import hpu_deepspeed
from core_hpu.strategy import HPUParallelStrategy, SingleHPUStrategy

__all__ = [
    "HPUAccelerator",
    "HPUParallelStrategy",
    "SingleHPUStrategy",
    "__version__",
    "hpu_deepspeed",
]
