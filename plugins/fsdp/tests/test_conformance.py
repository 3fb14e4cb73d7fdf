"""core-fsdp against the conformance kit, as any third party's plugin."""

import pytest

from core_fsdp import conformance
from support.short_suites import in_short

# Scripts of all strategies are started by core, and `TestDDP` starts one in new interpreters.
conformance.TestFSDP.new_interpreter = False
TestFSDP, TestCPUOffload = (
    pytest.mark.slow(conformance.TestFSDP),
    pytest.mark.slow(conformance.TestCPUOffload),
)
TestFSDPInShort = in_short(TestFSDP)
# Derived from the strategy of `TestFSDP`, the whole suite; test_equality.py has what tensor groups
# change.
TestModelParallelInShort = pytest.mark.slow(in_short(conformance.TestModelParallel))

pytestmark = pytest.mark.numbers
