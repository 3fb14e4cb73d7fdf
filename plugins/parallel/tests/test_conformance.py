"""core-parallel against the conformance kit, as any third party's plugin."""

import pytest

from core_parallel.conformance import TestParallel, TestPipeline, TestPipelines

pytest.mark.slow(TestPipeline)
pytest.mark.slow(TestParallel)
pytest.mark.slow(TestPipelines)

__all__ = ["TestParallel", "TestPipeline", "TestPipelines"]

pytestmark = pytest.mark.numbers
