"""A simulated device for `core`, with strategies of its own. Torch learns of it when the first one
is asked for.
"""

from functools import partial

from sim_device.accelerator import SimAccelerator
from sim_device.strategy import SimParallelStrategy, SimStrategy

__all__ = ["SimAccelerator", "SimParallelStrategy", "SimStrategy", "sim_parallel_fork"]

sim_parallel_fork = partial(SimParallelStrategy, start_method="fork")
