"""core-ipu against the conformance kit, on simulated IPUs."""

import pytest

from core_ipu.conformance import TestIPU, TestIPUOnOne, TestIPUStrategy

# Scripts of all strategies are started by core, and `TestDDP` starts one in new interpreters.
TestIPUStrategy.new_interpreter = False
__all__ = ["TestIPU", "TestIPUOnOne", "TestIPUStrategy"]

pytestmark = pytest.mark.slow
