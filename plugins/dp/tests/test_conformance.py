"""core-dp against the conformance kit, where there is a device that it can replicate modules on."""

import pytest

from core_dp.conformance import TestDDP2, TestDP

__all__ = ["TestDDP2", "TestDP"]

pytestmark = pytest.mark.gpu
