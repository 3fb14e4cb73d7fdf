"""The built-in strategies."""

from core import Capability
from core.testing import StrategyConformance


class TestSingleDevice(StrategyConformance):
    alias = "single_device"
    num_processes = 1
    expected_capabilities = (
        Capability.MANUAL_OPTIMIZATION
        | Capability.SEVERAL_MODULES
        | Capability.SEVERAL_OPTIMIZERS
        | Capability.CLIP_BY_VALUE
        | Capability.BIT_EXACT_RESUME
    )
