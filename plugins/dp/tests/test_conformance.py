"""core-dp against the conformance kit, where there is a device that it can replicate modules on."""

import pytest
import torch

from core_dp.conformance import TestDDP2, TestDP

__all__ = ["TestDDP2", "TestDP"]

if not torch.cuda.is_available():
    pytest.skip("there is no GPU; simulated: test_simulated_devices.py", allow_module_level=True)
pytestmark = pytest.mark.gpu
