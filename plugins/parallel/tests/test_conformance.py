"""core-parallel against the conformance kit, as any third party's plugin."""

import pytest

from core_parallel.conformance import TestParallel, TestPipeline, TestPipelines, TestShards, TestTensor

pytest.mark.slow(TestPipeline)
pytest.mark.slow(TestParallel)
pytest.mark.slow(TestPipelines)
pytest.mark.slow(TestShards)
pytest.mark.slow(TestTensor)

__all__ = ["TestParallel", "TestPipeline", "TestPipelines", "TestShards", "TestTensor"]

pytestmark = pytest.mark.numbers
