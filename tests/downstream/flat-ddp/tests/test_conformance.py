"""The kit, as an author writes it."""

from core import Capability
from core_testing import StrategyConformance, StrategySmoke


class TestFlatDDP(StrategyConformance):
    alias = "flat_ddp"
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


class TestFlatDDPFork(StrategySmoke):
    alias = "flat_ddp_fork"
