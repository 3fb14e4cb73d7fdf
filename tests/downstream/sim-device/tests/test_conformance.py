"""The device, and its strategy, against the kit."""

from core import Capability
from core_testing import AcceleratorConformance, StrategyConformance, StrategySmoke


class TestSim(AcceleratorConformance):
    alias = "sim"


class OnSim:
    accelerator = "sim"
    precisions = ("32-true", "64-true")  # the device has no autocast


class TestSimParallel(OnSim, StrategyConformance):
    """The device that it is compared with, and exchanges checkpoints with, is one of the same
    kind.
    """

    alias = "sim_parallel"
    expected_capabilities = (
        Capability.COLLECTIVES
        | Capability.NO_SYNC
        | Capability.MANUAL_OPTIMIZATION
        | Capability.SEVERAL_MODULES
        | Capability.SEVERAL_OPTIMIZERS
        | Capability.CLIP_BY_VALUE
        | Capability.INFERENCE_MODE
        | Capability.BIT_EXACT_RESUME
        | Capability.WEIGHTED_LOSSES
    )


class TestSimSingle(OnSim, StrategySmoke):
    alias = "sim_single"
    num_processes = 1


class TestSimParallelFork(OnSim, StrategySmoke):
    alias = "sim_parallel_fork"
