"""core-fsdp against the conformance kit, as any third party's plugin."""

import pytest

from core_fsdp.conformance import TestCPUOffload, TestFSDP, TestModelParallel

pytest.mark.slow(TestModelParallel)
pytest.mark.slow(TestCPUOffload)

__all__ = ["TestCPUOffload", "TestFSDP", "TestModelParallel"]

pytestmark = pytest.mark.numbers
