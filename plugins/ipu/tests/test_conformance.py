"""core-ipu against the conformance kit, on simulated IPUs."""

import pytest

from core_ipu.conformance import TestIPU, TestIPUOnOne, TestIPUStrategy

__all__ = ["TestIPU", "TestIPUOnOne", "TestIPUStrategy"]

pytestmark = pytest.mark.slow
