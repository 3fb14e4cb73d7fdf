"""core-dp against the conformance kit, where there is a device that it can replicate modules on."""

import pytest

from core_dp.conformance import TestDP

__all__ = ["TestDP"]

pytestmark = pytest.mark.gpu
