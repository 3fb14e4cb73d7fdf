"""core-fsdp against the conformance kit, as any third party's plugin."""

import pytest

from core_fsdp.conformance import TestCPUOffload, TestFSDP, TestModelParallel
from support.short_suites import in_short

TestFSDPInShort = in_short(TestFSDP)
for _slow in (TestFSDP, TestModelParallel, TestCPUOffload):
    pytest.mark.slow(_slow)

__all__ = ["TestCPUOffload", "TestFSDP", "TestFSDPInShort", "TestModelParallel"]

pytestmark = pytest.mark.numbers
