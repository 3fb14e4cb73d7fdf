"""core-parallel against the conformance kit, as any third party's plugin."""

import pytest

from core_parallel.conformance import (
    TestContext,
    TestExpert,
    TestGather,
    TestParallel,
    TestPipeline,
    TestPipelines,
    TestSchedule,
    TestShards,
    TestTensor,
)

_SUITES = (
    TestContext,
    TestExpert,
    TestGather,
    TestParallel,
    TestPipeline,
    TestPipelines,
    TestSchedule,
    TestShards,
    TestTensor,
)
for _suite in _SUITES:
    pytest.mark.slow(_suite)

__all__ = [suite.__name__ for suite in _SUITES]

pytestmark = pytest.mark.numbers
