"""core-parallel against the conformance kit, as any third party's plugin."""

import pytest

from core_parallel.conformance import TestParallel, TestPipeline, TestPipelines, TestSchedule

pytest.mark.slow(TestPipeline)
pytest.mark.slow(TestParallel)
pytest.mark.slow(TestPipelines)
pytest.mark.slow(TestSchedule)

__all__ = ["TestParallel", "TestPipeline", "TestPipelines", "TestSchedule"]

pytestmark = pytest.mark.numbers
