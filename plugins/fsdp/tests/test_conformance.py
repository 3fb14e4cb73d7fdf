"""core-fsdp against the conformance kit, as any third party's plugin."""

import pytest

from core_fsdp.conformance import TestCPUOffload, TestFSDP, TestModelParallel
from support.short_suites import in_short

TestFSDPInShort = in_short(TestFSDP)
# Derived from the strategy of `TestFSDP`, the whole suite; test_equality.py has what tensor groups change.
TestModelParallelInShort = pytest.mark.slow(in_short(TestModelParallel))
pytest.mark.exhaustive(TestModelParallel)
# Scripts of all strategies are started by core, and `TestDDP` starts one in new interpreters.
TestFSDP.new_interpreter = False
for _slow in (TestFSDP, TestCPUOffload):
    pytest.mark.slow(_slow)

__all__ = ["TestCPUOffload", "TestFSDP", "TestFSDPInShort", "TestModelParallel", "TestModelParallelInShort"]

pytestmark = pytest.mark.numbers
