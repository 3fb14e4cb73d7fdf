"""core-dp against the conformance kit, where there is a device that it can replicate modules on."""

import pytest

from core import Capability
from core.testing import StrategyConformance


@pytest.mark.gpu
class TestDP(StrategyConformance):
    alias = "dp"
    accelerator = "cuda"
    num_processes = 1
    expected_capabilities = (
        Capability.SEVERAL_MODULES
        | Capability.SEVERAL_OPTIMIZERS
        | Capability.CLIP_BY_VALUE
        | Capability.BIT_EXACT_RESUME
    )
